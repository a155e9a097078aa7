"""A request that cannot be served is refused with a 4xx status, never with a 500, and the server goes on.

llama.cpp's handlers serve some odd requests, so only the status class of these is fixed.
"""

from __future__ import annotations

import json

import openai
import pytest

TEXT = {"prompt": "def f(", "max_tokens": 3}
CHAT = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 3}
COMPLETIONS, CHATS = "/v1/completions", "/v1/chat/completions"
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
NAMED = {"type": "function", "function": {"name": "f"}}
TOO_LONG = "word " * 3000
EMBEDDINGS = "/v1/embeddings"


def user(*blocks: object) -> dict:
    return {"messages": [{"role": "user", "content": list(blocks)}]}


def of_schema(schema: dict) -> dict:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}


ODD = [
    (COMPLETIONS, {"prompt": TOO_LONG}, "maximum context length is 2048 tokens"),
    *((COMPLETIONS, {"prompt": prompt}) for prompt in ([], [[]], [3, "a"], [True], 3, "\ud800")),
    (COMPLETIONS, {"prompt": [10**9]}, "token"), (COMPLETIONS, {"prompt": [5], "echo": True}),
    (COMPLETIONS, {"prompt": ["a", "\ud800"]}), (COMPLETIONS, {"prompt": ["a"] * 65, "n": 2}),
    (COMPLETIONS, {"max_tokens": "many"}, "max_tokens"),
    *((path, {"max_tokens": n}) for path in (COMPLETIONS, CHATS) for n in (0, -1)),
    (CHATS, {"max_completion_tokens": 0}),
    (COMPLETIONS, {"temperature": -1}), (COMPLETIONS, {"temperature": float("nan")}),
    (COMPLETIONS, {"top_p": 2}), (COMPLETIONS, {"top_k": 10**12}), (COMPLETIONS, {"repeat_penalty": 1e308}),
    (COMPLETIONS, {"n": 0}), (COMPLETIONS, {"n": "two"}), (CHATS, {"n": 129}),
    *((COMPLETIONS, {"best_of": value}) for value in (2, float("inf"), [2], {"a": 1}, "2")),
    *((COMPLETIONS, {"logprobs": value}) for value in (21, -1, True)),
    (COMPLETIONS, {"logprobs": 1, "echo": True}), (CHATS, {"logprobs": 5}), (CHATS, {"top_logprobs": 2}),
    *((CHATS, {"logprobs": True, "top_logprobs": value}) for value in (100, -1, True)),
    (COMPLETIONS, {"grammar": "root ::= ("}, "grammar"),
    (COMPLETIONS, {"logit_bias": {"word": 1}}), (COMPLETIONS, {"logit_bias": {"99999999": 1}}),
    (CHATS, {"messages": []}), (CHATS, {"messages": [3]}), (CHATS, {"messages": "hello"}, "messages"),
    (CHATS, {"messages": [{"role": "user", "content": 3}]}),
    (CHATS, {"messages": [{"role": "alien", "content": "x"}]}),
    (CHATS, {"messages": [{"role": "user", "content": TOO_LONG}]}, "exceeds the available context size"),
    (CHATS, {"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}),
    (COMPLETIONS, {"response_format": 3}), (COMPLETIONS, {"response_format": {"type": "xml"}}),
    (COMPLETIONS, {**of_schema({}), "grammar": "root ::= x"}), (COMPLETIONS, of_schema({"$ref": "http://x"})),
    (CHATS, {"response_format": {"type": "xml"}}, "response_format"),
    (CHATS, {"response_format": {"type": "json_schema"}}),
    (CHATS, {"response_format": {"type": "json_object", "schema": 3}}),
    (CHATS, of_schema({"type": "odd"}), "unrecognized type odd"),
    (CHATS, of_schema({"type": "string", "pattern": "["})),
    (CHATS, {"tools": [TOOL], "tool_choice": "required"}), (CHATS, {"tools": [TOOL], "tool_choice": NAMED}),
    (CHATS, {"tool_choice": "required"}), (CHATS, {"tools": [{"type": "function"}]}, "tools"),
    (CHATS, {"messages": [{"role": "user"}]}, "content"), (CHATS, {"messages": 3}, "messages"),
    (CHATS, {"messages": [*CHAT["messages"], *[{"role": "assistant", "content": "a"}] * 2]},
     "2 or more assistant messages"),
    (CHATS, {"messages": [{"role": "assistant", "tool_calls": [{"id": "1"}]}]}, "messages"),
    (CHATS, user({"type": "image_url", "image_url": {"url": "data:,"}}), "mmproj"),
    (CHATS, user({"type": "file", "file": {"file_id": "f"}}), "send it"),
    *((COMPLETIONS, {"echo": True, **more}, says) for more, says in (
        ({"prompt": {"prompt_string": "a"}}, "echo repeats a text"), ({"prompt": []}, "echo repeats a text"),
        ({"prompt": ["a", ["b", 3]]}, "echo repeats a text"), ({"logprobs": 21}, "logprobs"),
        ({"logprobs": "two"}, "logprobs"), ({"logprobs": True}, "logprobs"), ({"prompt": [10**9]}, "prompt"),
        ({"prompt": [5] * 2100, "logprobs": 1}, "maximum context length"),
    )),
    (CHATS, {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "g"}}}),
]  # fmt: skip
"""Requests by path, and words of the refusal if it is certain."""


MESSAGES, COUNT, RESPONSES = "/v1/messages", "/v1/messages/count_tokens", "/v1/responses"
ASKED = {MESSAGES: CHAT, COUNT: CHAT, RESPONSES: {"input": "hello", "max_output_tokens": 3}}
USE = {"type": "tool_use", "id": "1", "name": "f", "input": "x"}
RESULT = {"type": "tool_result", "tool_use_id": "1"}
CALL = {"type": "function_call", "call_id": "1", "name": "f"}
IMAGE = {"type": "image", "source": {"type": "base64", "data": "AAAA", "media_type": "image/png"}}


OTHERS = [
    (MESSAGES, {"max_tokens": None}), (MESSAGES, {"max_tokens": 0}), (MESSAGES, {"messages": []}),
    (MESSAGES, {"messages": [3]}), (MESSAGES, {"messages": [{"role": "tool", "content": "x"}]}),
    (MESSAGES, {"messages": [{"role": "user"}]}), (MESSAGES, user(IMAGE)),
    (MESSAGES, user({**IMAGE, "source": {"type": "file"}}), "send it"),
    (MESSAGES, user({**RESULT, "content": [IMAGE]})), (MESSAGES, user({**RESULT, "tool_use_id": ""})),
    (MESSAGES, user({"type": "text", "text": 3})),
    (MESSAGES, {"messages": [{"role": "assistant", "content": [USE]}]}),
    (MESSAGES, {"system": 3}), (MESSAGES, {"system": [IMAGE]}), (MESSAGES, {"tools": [{"name": "f"}]}),
    (MESSAGES, {"tools": [{"type": "web_search_1", "name": "web_search"}]}),
    (MESSAGES, {"tool_choice": {"type": "some"}}), (MESSAGES, {"stop_sequences": [""]}),
    (MESSAGES, {"stop_sequences": "x"}), (MESSAGES, {"thinking": {"type": "enabled"}}),
    (MESSAGES, {"temperature": -1}), (MESSAGES, {"stream": "maybe"}), (MESSAGES, {"grammar": "root ::= ("}),
    (MESSAGES, {"messages": [{"role": "user", "content": TOO_LONG}]}, "exceeds"),
    (MESSAGES, {"temperature": "hot"}, "temperature"),
    (COUNT, {"messages": 3}),
    (RESPONSES, {"input": None}), (RESPONSES, {"input": []}), (RESPONSES, {"input": TOO_LONG}),
    (RESPONSES, {"input": [{"role": "alien", "content": "x"}]}),
    (RESPONSES, {"input": [{"role": "user", "content": [{"type": "input_image"}]}]}),
    (RESPONSES, {"input": [{"type": "item_reference", "id": "x"}]}),
    (RESPONSES, {"input": [{"type": "computer_call"}]}), (RESPONSES, {"input": [CALL]}),
    (RESPONSES, {"previous_response_id": "resp_1"}, "previous_response_id"),
    (RESPONSES, {"background": True}),
    (RESPONSES, {"tools": [{"type": "function"}]}), (RESPONSES, {"tool_choice": "required"}),
    (RESPONSES, {"tool_choice": {"type": "web_search"}}), (RESPONSES, {"max_output_tokens": -1}),
    (RESPONSES, {"text": {"format": {"type": "xml"}}}),
    (RESPONSES, {"text": {"format": {"type": "json_schema"}}}), (RESPONSES, {"parallel_tool_calls": 3}),
]  # fmt: skip


def said(body: bytes) -> str:
    """Return the message of an error in llama-server's form, or in Anthropic's."""
    error = json.loads(body)["error"]
    assert {"message", "type"} <= set(error)
    return error["message"]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("odd", [*ODD, *OTHERS])
def test_odd_requests(server, odd, stream):
    path, request, *words = odd
    usual = ASKED.get(path, TEXT if path == COMPLETIONS else CHAT)
    ends = {"logit_bias": {"0": 100.0}}  # at once, where nothing limits it
    status, answer = server.ask("POST", path, {**usual, **ends, "stream": stream, **request})
    assert (status == 200 and not words) or (400 <= status < 500 and said(answer)), answer
    if words:
        assert (status, words[0] in said(answer)) == (400, True), answer
    if path == MESSAGES and status != 200:  # also those that llama.cpp's handlers find
        told = json.loads(answer)
        assert (told["type"], told["error"]["type"]) == ("error", "invalid_request_error")


OTHER_DOORS = [
    ("GET", MESSAGES, None, 405), ("POST", MESSAGES, b"{", 400), ("POST", MESSAGES, b"[" * 100_000, 400),
    ("POST", "/v1/messages/batches", b"{}", 404),
    ("POST", RESPONSES, b"[]", "must be a JSON object"),
    *(("POST", COMPLETIONS, body, "the body is not valid JSON: ") for body in (b"", b"{", b"\xff\xfe")),
    *(("POST", COMPLETIONS, body, "the body must be a JSON object") for body in (b"[]", b"3")),
    ("POST", COMPLETIONS, b"[" * 100_000, "the body "), ("POST", COMPLETIONS, b" " * ((32 << 20) + 1), 413),
    ("POST", "/detokenize", {"tokens": [10**9]}, 400),  # the library would end the process
    ("POST", "/detokenize", {"tokens": [-1]}, 400), ("POST", "/v1/nothing", {}, 404),
    ("GET", "/v1/completions", None, 405), ("DELETE", "/v1/models", None, 405),
    *(("POST", EMBEDDINGS, body, words) for body, words in (
        ({}, "input"), ({"input": []}, "input"), ({"input": {"a": 1}}, "prompt"),
        ({"input": [10**6]}, "token"), ({"input": [5] * 2049}, "exceeds the available context size"),
        ({"input": "x", "encoding_format": "hex"}, "float or base64"),
    )),
]  # fmt: skip
"""Method, path and body, and the status, or the beginning of a 400's message."""


@pytest.mark.parametrize(("method", "path", "body", "expected"), OTHER_DOORS, ids=range(len(OTHER_DOORS)))
def test_what_is_no_request(server, method, path, body, expected):
    status, answer = server.ask(method, path, body)
    assert status == (400 if isinstance(expected, str) else expected), answer
    assert isinstance(expected, int) or expected in said(answer)
    assert said(answer)
    assert (json.loads(answer).get("type") == "error") == path.startswith(MESSAGES)


def test_what_the_server_tells_about_its_model(server):
    props, [model] = server.get("/props"), server.get("/v1/models")["data"]
    assert props["model_alias"] == model["id"] == "demo"
    assert props["default_generation_settings"]["n_ctx"] == model["meta"]["n_ctx"] == 2048
    assert model["meta"]["n_params"] > model["meta"]["n_vocab"] > 0
    assert 0 < model["meta"]["size"] < 4 * model["meta"]["n_params"] + 1
    assert model["meta"]["n_ctx_train"] > 0


def test_the_key(server):
    with pytest.raises(openai.AuthenticationError):
        server.client("another key").models.list()
    for method, path in (("POST", COMPLETIONS), ("POST", MESSAGES), ("POST", COUNT), ("POST", RESPONSES),
                         ("GET", "/metrics"), ("GET", "/v1/models")):  # fmt: skip
        assert server.ask(method, path, TEXT, key="")[0] == 401
    for path in ("/health", "/v1/health"):
        assert server.ask("GET", path, key="")[0] == 200


def test_browsers_see_refusals_too(server):
    """A page's script may read the answer only with the header of CORS."""
    connection = server.connection()
    connection.request("POST", COMPLETIONS, "{", {"origin": "http://example.com"})
    response = connection.getresponse()
    response.read()
    connection.close()
    assert response.status == 401
    assert response.getheader("access-control-allow-origin")


def test_it_still_serves(server):
    assert server.client().completions.create(model="demo", **TEXT).choices
    assert server.metric("spac_requests_total", status="500") == 0

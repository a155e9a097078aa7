"""A request that cannot be served is refused with a 4xx status and one clear line, never with a 500."""

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


def of_schema(schema: dict) -> dict:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}


REFUSED = [
    (COMPLETIONS, {"prompt": TOO_LONG}, 400, "the context holds 2048"),
    *((COMPLETIONS, {"prompt": prompt}, 400, "prompt: a text") for prompt in ([], [[]], [3, "a"], [True], 3)),
    (COMPLETIONS, {"prompt": [10**9]}, 400, "1000000000 is no token"),
    (COMPLETIONS, {"prompt": [5], "echo": True}, 400, "echo: not with a prompt of tokens"),
    (COMPLETIONS, {"prompt": ["a", "\ud800"]}, 400, "surrogate"),
    (COMPLETIONS, {"prompt": ["a"] * 65, "n": 2}, 400, "1 to 128 choices, not 2 for each of 65"),
    (COMPLETIONS, {"prompt": "\ud800"}, 400, "surrogate"),
    (COMPLETIONS, {"max_tokens": -1}, 400, "max_tokens: a whole number of at least 1"),
    (COMPLETIONS, {"max_tokens": 0}, 400, "max_tokens: a whole number of at least 1"),
    (CHATS, {"max_tokens": 0}, 400, "max_tokens: a whole number of at least 1"),
    (CHATS, {"max_tokens": -1}, 400, "max_tokens: a whole number of at least 1"),
    (CHATS, {"max_completion_tokens": 0}, 400, "max_completion_tokens: a whole number of at least 1"),
    (COMPLETIONS, {"max_tokens": "many"}, 400, "max_tokens: "),
    (COMPLETIONS, {"temperature": -1}, 400, "temperature: "),
    (COMPLETIONS, {"temperature": float("nan")}, 400, "temp"),
    (COMPLETIONS, {"top_p": 2}, 400, "top_p: "),
    (COMPLETIONS, {"top_k": 10**12}, 400, "top_k"),
    (COMPLETIONS, {"repeat_penalty": 1e308}, 400, "repeat_penalty"),
    (COMPLETIONS, {"n": 0}, 400, "n: "),
    (COMPLETIONS, {"n": "two"}, 400, "n: "),
    (CHATS, {"n": 129}, 400, "n: "),
    (COMPLETIONS, {"best_of": 2}, 400, "best_of: "),
    (COMPLETIONS, {"logprobs": 21}, 400, "logprobs: a number of alternatives from 0 to 20 is needed, not 21"),
    (COMPLETIONS, {"logprobs": -1}, 400, "logprobs: "),
    (COMPLETIONS, {"logprobs": True}, 400, "logprobs: "),
    (COMPLETIONS, {"logprobs": 1, "echo": True}, 400, "echo: not with logprobs"),
    (CHATS, {"logprobs": 5}, 400, "logprobs: true or false"),
    (CHATS, {"logprobs": True, "top_logprobs": 100}, 400, "top_logprobs: "),
    (CHATS, {"logprobs": True, "top_logprobs": -1}, 400, "top_logprobs: "),
    (CHATS, {"logprobs": True, "top_logprobs": True}, 400, "top_logprobs: "),
    (CHATS, {"top_logprobs": 2}, 400, "top_logprobs: logprobs has to be true"),
    (COMPLETIONS, {"grammar": "root ::= ("}, 400, "grammar"),
    (COMPLETIONS, {"logit_bias": {"word": 1}}, 400, "'word' is no token"),
    (COMPLETIONS, {"logit_bias": {"99999999": 1}}, 400, "99999999"),
    (CHATS, {"messages": []}, 400, "messages: "),
    (CHATS, {"messages": "hello"}, 400, "messages: "),
    (CHATS, {"messages": [3]}, 400, "role"),
    (CHATS, {"messages": [{"role": "user", "content": 3}]}, 400, "messages.0.content: "),
    (CHATS, {"messages": [{"role": "alien", "content": "x"}]}, 400, "'alien'"),
    (CHATS, {"messages": [{"role": "user", "content": TOO_LONG}]}, 400, "the context holds 2048"),
    (CHATS, {"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}, 400, "'input_audio'"),
    (COMPLETIONS, {"response_format": 3}, 400, "response_format: an object"),
    (COMPLETIONS, {"response_format": {"type": "xml"}}, 400, "'xml' is not text, json_object or json_schema"),
    (COMPLETIONS, {**of_schema({}), "grammar": "root ::= x"}, 400, "response_format: not with a grammar"),
    (COMPLETIONS, of_schema({"$ref": "http://x"}), 400, "response_format: the JSON schema cannot"),
    (CHATS, {"response_format": {"type": "xml"}}, 400, "'xml' is not text, json_object or json_schema"),
    (CHATS, {"response_format": {"type": "json_schema"}}, 400, "no schema"),
    (CHATS, {"response_format": {"type": "json_object", "schema": 3}}, 400, "schema of json_object"),
    (CHATS, of_schema({"type": "odd"}), 400, "a JSON schema cannot be used: at #: unrecognized type odd"),
    (CHATS, of_schema({"type": "string", "pattern": "["}), 400, "response_format: the JSON schema cannot"),
    (CHATS, {"tools": [TOOL], "tool_choice": "required"}, 400, "tool_choice: the plain chat template"),
    (CHATS, {"tools": [TOOL], "tool_choice": NAMED}, 400, "tool_choice: the plain chat template"),
    (CHATS, {"tool_choice": "required"}, 400, "tool_choice: a tool is required"),
    (CHATS, {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "g"}}}, 400, "'g'"),
]


MESSAGES, COUNT, RESPONSES = "/v1/messages", "/v1/messages/count_tokens", "/v1/responses"
ASKED = {MESSAGES: CHAT, COUNT: CHAT, RESPONSES: {"input": "hello", "max_output_tokens": 3}}
USE = {"type": "tool_use", "id": "1", "name": "f", "input": "x"}
RESULT = {"type": "tool_result", "tool_use_id": "1"}
CALL = {"type": "function_call", "call_id": "1", "name": "f"}
IMAGE = {"type": "image", "source": {"type": "base64", "data": "AAAA", "media_type": "image/png"}}


def user(*blocks: object) -> dict:
    return {"messages": [{"role": "user", "content": list(blocks)}]}


OTHERS = [
    (MESSAGES, {"max_tokens": None}, 400, "max_tokens: "),
    (MESSAGES, {"max_tokens": 0}, 400, "max_tokens: "),
    (MESSAGES, {"messages": []}, 400, "messages: "),
    (MESSAGES, {"messages": [3]}, 400, "messages.0: an object"),
    (MESSAGES, {"messages": [{"role": "tool", "content": "x"}]}, 400, "messages.0.role: "),
    (MESSAGES, {"messages": [{"role": "user"}]}, 400, "messages.0.content: a string or"),
    (MESSAGES, user(IMAGE), 400, "this model sees no images: start with --mmproj"),
    (MESSAGES, user({**IMAGE, "source": {"type": "file"}}), 400, "content.0.source.type: base64 or url"),
    (MESSAGES, user({**RESULT, "content": [IMAGE]}), 400, "this model sees no images"),
    (MESSAGES, user({**RESULT, "tool_use_id": ""}), 400, "tool_use_id: "),
    (MESSAGES, user({"type": "text", "text": 3}), 400, "messages.0.content.0.text: "),
    (MESSAGES, {"messages": [{"role": "assistant", "content": [USE]}]}, 400, "input: an object"),
    (MESSAGES, {"system": 3}, 400, "system: "),
    (MESSAGES, {"system": [IMAGE]}, 400, "system.0: only text"),
    (MESSAGES, {"tools": [{"name": "f"}]}, 400, "tools.0.input_schema: "),
    (MESSAGES, {"tools": [{"type": "web_search_1", "name": "web_search"}]}, 400, "'web_search_1' cannot be"),
    (MESSAGES, {"tool_choice": {"type": "some"}}, 400, "tool_choice.type: "),
    (MESSAGES, {"stop_sequences": [""]}, 400, "stop_sequences.0: "),
    (MESSAGES, {"stop_sequences": "x"}, 400, "stop_sequences: "),
    (MESSAGES, {"thinking": {"type": "enabled"}}, 400, "thinking.budget_tokens: "),
    (MESSAGES, {"temperature": -1}, 400, "temperature: "),
    (MESSAGES, {"stream": "maybe"}, 400, "stream: "),
    (MESSAGES, {"grammar": "root ::= ("}, 400, "grammar"),
    (MESSAGES, {"messages": [{"role": "user", "content": TOO_LONG}]}, 400, "prompt is too long: "),
    (COUNT, {"messages": 3}, 400, "messages: "),
    (RESPONSES, {"input": None}, 400, "input: "),
    (RESPONSES, {"input": []}, 400, "input: "),
    (RESPONSES, {"input": [{"role": "alien", "content": "x"}]}, 400, "input.0.role: "),
    (RESPONSES, {"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, 400, "image_url: a"),
    (RESPONSES, {"input": [{"type": "item_reference", "id": "x"}]}, 400, "input.0: nothing is stored"),
    (RESPONSES, {"input": [{"type": "computer_call"}]}, 400, "'computer_call' cannot be read"),
    (RESPONSES, {"input": [CALL]}, 400, "input.0.arguments: "),
    (RESPONSES, {"previous_response_id": "resp_1"}, 400, "previous_response_id: nothing is stored here"),
    (RESPONSES, {"background": True}, 400, "background: "),
    (RESPONSES, {"tools": [{"type": "function"}]}, 400, "tools.0.name: "),
    (RESPONSES, {"tool_choice": "required"}, 400, "tool_choice: "),
    (RESPONSES, {"tool_choice": {"type": "web_search"}}, 400, "tool_choice.type: "),
    (RESPONSES, {"max_output_tokens": -1}, 400, "max_output_tokens: "),
    (RESPONSES, {"text": {"format": {"type": "xml"}}}, 400, "text.format.type: "),
    (RESPONSES, {"text": {"format": {"type": "json_schema"}}}, 400, "text.format.schema: "),
    (RESPONSES, {"parallel_tool_calls": 3}, 400, "parallel_tool_calls: "),
    (RESPONSES, {"input": TOO_LONG}, 400, "the context holds 2048"),
]


def said(body: bytes) -> str:
    error = json.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert "\n" not in error["message"]
    return error["message"]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(("path", "request_", "status", "words"), REFUSED)
def test_what_cannot_be_served(server, path, request_, status, words, stream):
    body = {**(TEXT if path == COMPLETIONS else CHAT), **request_, "stream": stream}
    got, answer = server.ask("POST", path, body)
    assert got == status
    assert words in said(answer)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(("path", "request_", "status", "words"), OTHERS)
def test_what_cannot_be_served_in_other_interfaces(server, path, request_, status, words, stream):
    got, answer = server.ask("POST", path, {**ASKED[path], "stream": stream, **request_})
    assert got == status
    assert words in (said if path == RESPONSES else said_by_anthropic)(answer)


def said_by_anthropic(body: bytes) -> str:
    answer = json.loads(body)
    assert set(answer) == {"type", "error"}
    assert (answer["type"], set(answer["error"])) == ("error", {"type", "message"})
    assert "\n" not in answer["error"]["message"]
    return answer["error"]["message"]


def test_other_interfaces_say_it_in_their_own_words(server):
    for method, path, body, status, words in (
        ("GET", MESSAGES, None, 405, "Method"),
        ("POST", MESSAGES, b"{", 400, "the body is not valid JSON: "),
        ("POST", MESSAGES, b"[" * 100_000, 400, "the body is not valid JSON: "),
        ("POST", "/v1/messages/batches", b"{}", 404, "nothing is served at /v1/messages/batches"),
    ):
        got, answer = server.ask(method, path, body)
        assert got == status
        assert words in said_by_anthropic(answer)
    assert "must be a JSON object" in said(server.ask("POST", RESPONSES, b"[]")[1])
    assert said_by_anthropic(server.ask("POST", MESSAGES, CHAT, key="")[1])


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"3", b"\xff\xfe", b"[" * 100_000])
def test_a_body_that_is_no_request(server, body):
    status, answer = server.ask("POST", COMPLETIONS, body)
    assert status == 400
    assert said(answer).startswith(("the body is not valid JSON: ", "the body must be a JSON object"))


def test_a_body_that_is_too_large(server):
    status, answer = server.ask("POST", COMPLETIONS, b" " * ((32 << 20) + 1))
    assert status == 413
    assert "32 MB" in said(answer)


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "/extras/detokenize", {"tokens": [10**9]}, 400),  # the library would end the process
        ("POST", "/extras/detokenize", {"tokens": [-1]}, 400),
        ("POST", "/v1/nothing", {}, 404),
        ("GET", "/v1/completions", None, 405),
        ("DELETE", "/v1/models", None, 405),
    ],
)
def test_other_doors(server, method, path, body, status):
    got, answer = server.ask(method, path, body)
    assert got == status
    assert said(answer)


def test_what_is_odd_and_can_be_served(server):
    for more in ({"temperature": "0.5"}, {"stop": [""]}, {"max_tokens": 10**30, "stop": "e"}, {"prompt": ""},
                 {"seed": 10**20}, {"suffix": None, "user": None}, {"unheard_of": 1}):  # fmt: skip
        status, answer = server.ask("POST", COMPLETIONS, {**TEXT, **more})
        assert status == 200, (more, answer)


def test_an_empty_stop_text_is_none(server):
    for path, request, stop in ((COMPLETIONS, TEXT, ""), (COMPLETIONS, TEXT, ["", "@@"]), (CHATS, CHAT, "")):
        status, answer = server.ask("POST", path, {**request, "stop": stop})
        assert (status, json.loads(answer)["usage"]["completion_tokens"]) == (200, 3)


def test_a_stream_that_is_not_asked_for(server):
    status, answer = server.ask("POST", MESSAGES, {**CHAT, "stream": "false"})
    assert (status, json.loads(answer)["type"]) == (200, "message")


def test_tokens_there_and_back(server):
    tokens = json.loads(server.ask("POST", "/extras/tokenize", {"input": "def f("})[1])["tokens"]
    assert len(tokens) > 1
    text = json.loads(server.ask("POST", "/extras/detokenize", {"tokens": tokens})[1])["text"]
    assert text.endswith("def f(")


def test_llama_servers_tokens(server):
    def asked(path, **request):
        status, answer = server.ask("POST", path, request)
        return json.loads(answer) if status == 200 else said(answer)

    tokens = asked("/tokenize", content="def f(")["tokens"]
    pieces = asked("/tokenize", content="def f(", with_pieces=True)["tokens"]
    assert [each["id"] for each in pieces] == tokens
    assert len(asked("/tokenize", content="def f(", add_special=True)["tokens"]) >= len(tokens)
    assert asked("/detokenize", tokens=tokens)["content"] == "".join(each["piece"] for each in pieces)
    assert asked("/tokenize") == {"tokens": []}
    assert asked("/tokenize", content=3) == "content: a string is needed"
    assert asked("/detokenize", tokens=["a"]) == "tokens: a list of tokens is needed"
    assert "-1 is no token" in asked("/detokenize", tokens=[-1])
    assert server.ask("POST", "/tokenize", "{")[0] == 400
    assert server.ask("POST", "/tokenize", b" " * ((32 << 20) + 1))[0] == 413


def test_what_the_server_tells_about_its_model(server):
    props = json.loads(server.ask("GET", "/props")[1])
    [model] = json.loads(server.ask("GET", "/v1/models")[1])["data"]
    assert props["model_alias"] == model["id"] == "demo"
    assert props["default_generation_settings"]["n_ctx"] == model["meta"]["n_ctx"] == 2048
    assert model["meta"]["n_params"] > model["meta"]["n_vocab"] > 0
    assert 0 < model["meta"]["size"] < 4 * model["meta"]["n_params"] + 1
    assert model["meta"]["n_ctx_train"] > 0
    assert server.ask("GET", "/v1/health", key="")[0] == 200


def test_the_key(server):
    with pytest.raises(openai.AuthenticationError) as refused:
        server.client("another key").models.list()
    assert refused.value.code == "invalid_api_key"
    for method, path in (("POST", COMPLETIONS), ("POST", MESSAGES), ("POST", COUNT), ("POST", RESPONSES),
                         ("GET", "/metrics"), ("GET", "/v1/models")):  # fmt: skip
        assert server.ask(method, path, TEXT, key="")[0] == 401
    assert server.ask("GET", "/health", key="")[0] == 200


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

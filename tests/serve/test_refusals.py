"""What cannot be served is refused with a 4xx status and one clear line, never with a 500."""

from __future__ import annotations

import json

import openai
import pytest

TEXT = {"prompt": "def f(", "max_tokens": 3}
CHAT = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 3}
COMPLETIONS, CHATS = "/v1/completions", "/v1/chat/completions"
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
TOO_LONG = "word " * 3000

REFUSED = [
    (COMPLETIONS, {"model": "gpt-4"}, 404, "'gpt-4' is not served here: demo is"),
    (COMPLETIONS, {"prompt": TOO_LONG}, 400, "the context holds 2048"),
    (COMPLETIONS, {"prompt": ["a", "b"]}, 400, "one text"),
    (COMPLETIONS, {"prompt": [1, 2]}, 400, "prompt: "),
    (COMPLETIONS, {"prompt": "\ud800"}, 400, "surrogate"),
    (COMPLETIONS, {"max_tokens": -1}, 400, "max_tokens: "),
    (COMPLETIONS, {"max_tokens": "many"}, 400, "max_tokens: "),
    (COMPLETIONS, {"temperature": -1}, 400, "temperature: "),
    (COMPLETIONS, {"temperature": float("nan")}, 400, "temp"),
    (COMPLETIONS, {"top_p": 2}, 400, "top_p: "),
    (COMPLETIONS, {"top_k": 10**12}, 400, "top_k"),
    (COMPLETIONS, {"repeat_penalty": 1e308}, 400, "repeat_penalty"),
    (COMPLETIONS, {"n": 2}, 400, "n: only 1"),
    (COMPLETIONS, {"logprobs": 2}, 400, "logprobs"),
    (COMPLETIONS, {"grammar": "root ::= ("}, 400, "grammar"),
    (COMPLETIONS, {"logit_bias": {"word": 1}}, 400, "'word' is no token"),
    (COMPLETIONS, {"logit_bias": {"99999999": 1}}, 400, "99999999"),
    (CHATS, {"messages": []}, 400, "messages: "),
    (CHATS, {"messages": "hello"}, 400, "messages: "),
    (CHATS, {"messages": [3]}, 400, "role"),
    (CHATS, {"messages": [{"role": "user", "content": 3}]}, 400, "messages.0.content: "),
    (CHATS, {"messages": [{"role": "alien", "content": "x"}]}, 400, "'alien'"),
    (CHATS, {"messages": [{"role": "user", "content": TOO_LONG}]}, 400, "the context holds 2048"),
    (CHATS, {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400, "only text"),
    (CHATS, {"response_format": {"type": "xml"}}, 400, "response_format"),
    (CHATS, {"response_format": {"type": "json_schema"}}, 400, "no schema"),
    (CHATS, {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "g"}}}, 400, "'g'"),
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


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"3", b"\xff\xfe", b"[" * 100_000])
def test_a_body_that_is_no_request(server, body):
    status, answer = server.ask("POST", COMPLETIONS, body)
    assert status == 400
    assert "no JSON" in said(answer)


def test_a_body_that_is_too_large(server):
    status, answer = server.ask("POST", COMPLETIONS, b" " * ((32 << 20) + 1))
    assert status == 413
    assert "32 MB" in said(answer)


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "/extras/detokenize", {"tokens": [10**9]}, 400),  # the library would end the process
        ("POST", "/extras/detokenize", {"tokens": [-1]}, 400),
        ("POST", "/v1/embeddings", {"input": "x"}, 400),
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


def test_tokens_there_and_back(server):
    tokens = json.loads(server.ask("POST", "/extras/tokenize", {"input": "def f("})[1])["tokens"]
    assert len(tokens) > 1
    text = json.loads(server.ask("POST", "/extras/detokenize", {"tokens": tokens})[1])["text"]
    assert text.endswith("def f(")


def test_the_key(server):
    with pytest.raises(openai.AuthenticationError) as refused:
        server.client("another key").models.list()
    assert refused.value.code == "invalid_api_key"
    for method, path in (("POST", COMPLETIONS), ("GET", "/metrics"), ("GET", "/v1/models")):
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

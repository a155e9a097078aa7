"""llama-server's own completions, and its paths without /v1."""

from __future__ import annotations

import json

import pytest

from tests.serve.test_refusals import said

GREEDY = {"prompt": "def add(", "n_predict": 24, "temperature": 0, "cache_prompt": True}


def ask(server, path="/completion", **request):
    """Return the answer, or the message of a refusal."""
    status, answer = server.ask("POST", path, request)
    assert status in (200, 400)
    return json.loads(answer) if status == 200 else said(answer)


@pytest.fixture(scope="module")
def text(server):
    asked = {"prompt": GREEDY["prompt"], "max_tokens": 24, "temperature": 0}
    return ask(server, "/v1/completions", **asked)["choices"][0]["text"]


def test_a_completion_that_meets_its_limit(server, text):
    for path in ("/completion", "/completions"):
        made = ask(server, path, **GREEDY)
        assert made["content"] == text
        assert (made["stop"], made["stop_type"], made["stopping_word"]) == (True, "limit", "")
        assert made["tokens_predicted"] == made["timings"]["predicted_n"] == 24
        assert made["tokens_evaluated"] == made["timings"]["prompt_n"] + made["tokens_cached"] > 1
        assert (made["model"], made["prompt"]) == ("demo", "def add(")


def test_a_completion_of_tokens_that_meets_a_stop(server, text):
    tokens = ask(server, "/tokenize", content="def add(", add_special=True)["tokens"]
    word = text[10:13]
    made = ask(server, **{**GREEDY, "prompt": tokens, "stop": ["@@@", word]})
    assert made["content"] == text[: text.index(word)]
    assert (made["stop_type"], made["stopping_word"]) == ("word", word)
    assert 0 < made["tokens_predicted"] <= 24


def test_a_completion_that_ends_by_itself(server):
    made = ask(server, prompt="x", grammar='root ::= "yes"')
    assert (made["content"], made["stop_type"]) == ("yes", "eos")
    made = ask(server, prompt="x", json_schema={"enum": ["a"]}, n_predict=-1, logit_bias=[[0, False]])
    assert json.loads(made["content"]) == "a"


def test_a_stream(server, text):
    status, answer = server.ask("POST", "/completion", {**GREEDY, "stream": True, "stop": "@@@"})
    *parts, last = [json.loads(line.removeprefix("data: ")) for line in answer.decode().split("\n\n") if line]
    assert status == 200
    assert "".join(part["content"] for part in parts) == text
    assert not any(part["stop"] for part in parts)
    assert (last["stop"], last["content"], last["stop_type"]) == (True, "", "limit")
    assert last["timings"]["predicted_n"] == 24


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        ({}, "prompt: one text"),
        ({"prompt": ["a", "b"]}, "prompt: one text or list of tokens is needed: /v1/completions"),
        ({"prompt": "x", "n_predict": 0}, "n_predict: "),
        ({"prompt": "x", "n_probs": 3}, "n_probs: "),
        ({"prompt": "x", "ignore_eos": True}, "ignore_eos: "),
        ({"prompt": "x", "stop": [3]}, "stop: "),
        ({"prompt": "x", "logit_bias": [3]}, "logit_bias: "),
        ({"prompt": "x", "json_schema": 3}, "json_schema: "),
        ({"prompt": [10**6]}, "1000000 is no token"),
        ({"prompt": "x", "n_predict": 4, "temperature": -1}, "temperature: "),
    ],
)
def test_requests_that_cannot_be(server, request_, reason):
    assert ask(server, **request_).startswith(reason)


def test_bodies_that_are_no_request(server):
    assert server.ask("POST", "/completion", "{")[0] == 400


def test_paths_without_the_version(server):
    chat = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 3, "temperature": 0}
    made, same = (ask(server, path, **chat) for path in ("/chat/completions", "/v1/chat/completions"))
    assert made["choices"] == same["choices"]
    assert ask(server, "/responses", input="hello", max_output_tokens=3)["object"] == "response"
    assert server.ask("GET", "/models") == server.ask("GET", "/v1/models")
    assert server.ask("GET", "/models", key="")[0] == 401
    assert "/chat/completions 200" in server.err

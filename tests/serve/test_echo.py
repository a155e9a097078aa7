"""Completions repeat their prompt with `echo`, and with `logprobs` they say how likely its tokens are."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.serve.conftest import Server

PROMPT = "def add(a, b):\n"
COMPLETIONS = "/v1/completions"


def choices(server: Server, **asked: Any) -> list[dict[str, Any]]:
    request = {"prompt": PROMPT, "max_tokens": 3, "temperature": 0, "echo": True, **asked}
    return server.post(COMPLETIONS, request)["choices"]


def test_the_prompt_comes_first(server):
    plain = choices(server, echo=False)[0]["text"]
    assert choices(server)[0]["text"] == PROMPT + plain
    tokens = json.loads(server.ask("POST", "/tokenize", {"content": PROMPT})[1])["tokens"]
    assert choices(server, prompt=tokens)[0]["text"].startswith(PROMPT)
    both = choices(server, prompt=[PROMPT, "class A"])
    assert [each["text"].startswith(text) for each, text in zip(both, (PROMPT, "class A"), strict=True)]
    assert choices(server, max_tokens=0)[0]["text"] == PROMPT


def test_each_token_has_its_probability(server):
    found = choices(server, logprobs=2)[0]
    logprobs = found["logprobs"]
    assert "".join(logprobs["tokens"]) == found["text"]
    assert len({len(column) for column in logprobs.values()}) == 1
    assert logprobs["text_offset"] == [
        len("".join(logprobs["tokens"][:i])) for i in range(len(logprobs["tokens"]))
    ]
    # The model's greedy text is the likeliest one as a prompt too. lm-eval compares answers like this.
    again = choices(server, prompt=found["text"], logprobs=1, max_tokens=1)[0]["logprobs"]
    n = len(logprobs["tokens"])
    assert again["tokens"][:n] == logprobs["tokens"]
    assert again["token_logprobs"][:n] == pytest.approx(logprobs["token_logprobs"], abs=0.1)
    for token, best in zip(again["tokens"][n - 3 : n], again["top_logprobs"][n - 3 : n], strict=True):
        assert token == max(best, key=best.get)


def test_a_list_of_tokens_begins_with_one_that_nothing_predicts(server):
    logprobs = choices(server, prompt=[5, 6, 7], logprobs=1, max_tokens=0)[0]["logprobs"]
    assert [value is None for value in logprobs["token_logprobs"]] == [True, False, False]


def test_a_stream_begins_with_the_prompt(server):
    client = server.client()
    prompts = [PROMPT, "class A"]
    asked: dict[str, Any] = {"model": "demo", "prompt": prompts, "max_tokens": 3, "temperature": 0}
    parts = list(client.completions.create(**asked, echo=True, logprobs=1, stream=True))
    whole = client.completions.create(**asked, echo=True, logprobs=1)
    for index in range(2):
        mine = [part.choices[0] for part in parts if part.choices and part.choices[0].index == index]
        assert "".join(part.text for part in mine) == whole.choices[index].text
        for field in ("tokens", "text_offset"):
            joined = [each for part in mine if part.logprobs for each in getattr(part.logprobs, field)]
            assert joined == getattr(whole.choices[index].logprobs, field)

"""Log probabilities of `spac.Llama`'s completions and chats equal those of llama_cpp's own loop with
`logits_all`. Experts are split, speculation is on, and some answers are streams."""

from __future__ import annotations

import json
import re
from contextlib import closing
from functools import partial
from typing import Any

import llama_cpp
import numpy as np
import pytest

from spac.errors import InputError
from spac.llama_cpp_python.llama import Llama
from tests.llama_cpp_python.conftest import DRAFT, SMALL, TARGET

PROMPT = "Once upon a time, there was a little dog who wanted to fly."
ASKED: dict[str, Any] = {"max_tokens": 16, "temperature": 0, "logprobs": 3}
USER = [{"role": "user", "content": "hello"}]
FIELDS = ("tokens", "text_offset", "token_logprobs", "top_logprobs")


def demo(**options: Any) -> Llama:
    """Return the target without flash attention, whose rounding depends on the batch on some CPUs."""
    return Llama(str(TARGET), chat_format="chatml", flash_attn="off", **{**SMALL, **options})


@pytest.fixture(scope="module")
def drafting():
    """Yield a model with experts on the simulated device and the CPU. It drafts four tokens at a time."""
    with closing(demo(draft=str(DRAFT), draft_length=4, slots="25%", device="simulated")) as llm:
        yield llm


@pytest.fixture(scope="module")
def reference():
    """Yield a model on llama_cpp's own loop, which evaluates every token by itself and keeps all logits."""
    with closing(demo(device="cpu", logits_all=True)) as llm:
        yield llm


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {"device": "cpu"},
    "draft-length-0": {"draft": str(DRAFT), "draft_length": 0, "slots": "25%", "device": "simulated"},
    "own-loop": {"slots": "25%", "device": "simulated"},
}


@pytest.fixture(params=["drafting", *OPTIONS])
def llm(request, drafting):
    if request.param == "drafting":
        yield drafting
        return
    with closing(demo(**OPTIONS[request.param])) as llm:
        if request.param == "own-loop":  # the session cannot use a logits processor
            same = llama_cpp.LogitsProcessorList([lambda _ids, scores: scores])
            llm.create_completion = partial(llm.create_completion, logits_processor=same)
        yield llm


def choice_of(llm: Llama, prompt: str = PROMPT, **asked: Any) -> dict[str, Any]:
    return dict(llm.create_completion(prompt, **{**ASKED, **asked})["choices"][0])


def streamed(llm: Llama, prompt: str = PROMPT, **asked: Any) -> tuple[str, dict[str, list[Any]]]:
    """Return the joined text and log probabilities of a stream."""
    chunks = llm.create_completion(prompt, stream=True, **{**ASKED, **asked})
    choices = [chunk["choices"][0] for chunk in chunks]
    told = [choice["logprobs"] for choice in choices if choice["logprobs"]]
    joined = {field: [each for one in told for each in one[field]] for field in FIELDS}
    return "".join(choice["text"] for choice in choices), joined


def test_they_are_those_of_all_logits(llm, reference):
    got, right = choice_of(llm)["logprobs"], choice_of(reference)["logprobs"]
    assert got["tokens"] == right["tokens"]
    assert len(got["tokens"]) == 16
    assert got["text_offset"] == right["text_offset"]
    np.testing.assert_allclose(got["token_logprobs"], right["token_logprobs"], atol=1e-3)
    for ours, theirs in zip(got["top_logprobs"], right["top_logprobs"], strict=True):
        assert list(ours) == list(theirs)
        np.testing.assert_allclose(list(ours.values()), [float(x) for x in theirs.values()], atol=1e-3)
    json.dumps(got)


def test_a_token_that_is_none_of_the_most_probable_is_reported_too(drafting):
    found = choice_of(drafting, temperature=1.5, seed=1, logprobs=1, max_tokens=40)["logprobs"]
    assert drafting.stats.drafted_tokens > drafting.stats.accepted_tokens > 0
    assert {len(each) for each in found["top_logprobs"]} == {1, 2}
    for token, value, top in zip(*(found[each] for each in FIELDS if each != "text_offset"), strict=True):
        assert top[token] == value <= max(top.values())


def test_without_alternatives(drafting):
    found = choice_of(drafting, logprobs=0)["logprobs"]
    assert [list(top) for top in found["top_logprobs"]] == [[token] for token in found["tokens"]]
    assert choice_of(drafting, logprobs=None)["logprobs"] is None
    assert streamed(drafting, logprobs=None)[1]["tokens"] == []


STOPS: dict[str, Any] = {
    "none": lambda _text: None,
    "a word": lambda text: text.split()[3],
    "one of two": lambda text: ["nowhere", " " + " ".join(text.split()[3:5])],
    "parts of two words": lambda text: [text.split()[3][-2:] + " " + text.split()[4][:1]],
}
"""Stop texts within the text that is expected."""


@pytest.mark.parametrize("stop", STOPS)
@pytest.mark.parametrize("prompt", [PROMPT, ""])
def test_a_stream_tells_the_same(llm, stop, prompt):
    asked: dict[str, Any] = {"seed": 5, "temperature": 0.2}
    stop = STOPS[stop](choice_of(llm, prompt, **asked)["text"])
    whole = choice_of(llm, prompt, stop=stop, **asked)
    text, joined = streamed(llm, prompt, stop=stop, **asked)
    assert text == whole["text"]
    assert joined == {field: whole["logprobs"][field] for field in FIELDS}
    assert re.sub(r"<\|\w+\|>", "", "".join(joined["tokens"])).strip().startswith(text.strip())
    assert joined["text_offset"][0] == len(prompt)


def test_tokens_of_a_stop_text_are_left_out(drafting):
    """Tokens that begin before the stop text stay, with all of their text."""
    tokens = choice_of(drafting)["logprobs"]["tokens"]
    at, word = next((at, each) for at, each in enumerate(tokens) if len(each) > 4)
    cut = choice_of(drafting, stop=word)
    assert cut["finish_reason"] == "stop"
    assert cut["logprobs"]["tokens"] == tokens[:at]
    inside = choice_of(drafting, stop=word[2:])
    assert inside["logprobs"]["tokens"] == tokens[: at + 1]


def test_a_part_of_a_character(drafting):
    """The bytes of a part are written as escapes. The bytes of all tokens together are the text."""
    text = "é→😀ü"
    grammar = llama_cpp.LlamaGrammar.from_string(f'root ::= "{text}"', verbose=False)
    asked: dict[str, Any] = {"grammar": grammar, "max_tokens": 40}
    whole = choice_of(drafting, **asked)
    assert whole["text"] == text
    assert any("\\x" in token for token in whole["logprobs"]["tokens"])
    assert streamed(drafting, **asked) == (text, {field: whole["logprobs"][field] for field in FIELDS})
    made = drafting.create_chat_completion(
        USER, logprobs=True, top_logprobs=2, max_tokens=40, temperature=0, grammar=grammar
    )
    assert made["choices"][0]["message"]["content"] == text


def test_another_call_within_a_stream(drafting):
    """Accepted drafted tokens that were not handed out yet are dropped. Every token is still the most
    probable one of its own place."""
    stream = drafting.create_completion(PROMPT, stream=True, **ASKED)
    parts = [next(stream)]
    drafting.create_completion("x = ", max_tokens=2)
    parts += stream
    found = [each["choices"][0]["logprobs"] for each in parts if each["choices"][0]["logprobs"]]
    for each in found:
        for token, top in zip(each["tokens"], each["top_logprobs"], strict=True):
            assert max(top, key=top.__getitem__) == token
            assert len(top) == 3
    assert sum(len(each["tokens"]) for each in found) == 16


def test_biases_do_not_count(llm):
    first = choice_of(llm)["logprobs"]["tokens"][0]
    [token] = llm.tokenize(first.encode(), add_bos=False)[-1:]
    found = choice_of(llm, logit_bias={token: -100.0})["logprobs"]
    assert found["tokens"][0] != first
    assert found["top_logprobs"][0][first] > found["token_logprobs"][0]


def test_control_tokens_have_a_name(drafting):
    [every] = choice_of(drafting, max_tokens=1, logprobs=10**6)["logprobs"]["top_logprobs"]
    assert "" not in every
    assert np.exp(list(every.values())).sum() == pytest.approx(1, abs=1e-3)


def test_what_cannot_be(llm, reference):
    for logprobs in (-1, -20):
        with pytest.raises(InputError, match="0 or more"):
            llm.create_completion(PROMPT, logprobs=logprobs)
    with pytest.raises(InputError, match="logits_all=True"):
        llm.create_completion(PROMPT, logprobs=1, echo=True)
    assert choice_of(reference, echo=True)["logprobs"]["token_logprobs"][0] is None


# Chats


@pytest.mark.parametrize("chat_format", ["chatml", "common"])
def test_a_chat(opened, chat_format):
    llm = opened(draft=str(DRAFT), draft_length=4, slots="25%", device="simulated", chat_format=chat_format)
    asked: dict[str, Any] = {"logprobs": True, "top_logprobs": 2, "max_tokens": 12, "temperature": 0}
    choice = llm.create_chat_completion(USER, **asked)["choices"][0]
    content = choice["logprobs"]["content"]
    assert "".join(each["token"] for each in content) == choice["message"]["content"]
    for each in content:
        assert each["logprob"] == each["top_logprobs"][0]["logprob"]
        assert len(each["top_logprobs"]) == 2
        if chat_format == "common":
            assert bytes(each["bytes"]) == each["token"].encode()
    chunks = [chunk["choices"][0] for chunk in llm.create_chat_completion(USER, stream=True, **asked)]
    parts = [each for chunk in chunks if chunk["logprobs"] for each in chunk["logprobs"]["content"]]
    assert parts == content
    alone = llm.create_chat_completion(USER, **{**asked, "top_logprobs": None})["choices"][0]["logprobs"]
    if chat_format == "common":
        assert [each["top_logprobs"] for each in alone["content"]] == [[]] * 12
    assert llm.create_chat_completion(USER, max_tokens=2)["choices"][0]["logprobs"] is None


def test_a_chat_with_all_logits(opened):
    llm = opened(device="cpu", logits_all=True, chat_format="common")
    made = llm.create_chat_completion(USER, logprobs=True, top_logprobs=2, max_tokens=3, temperature=0)
    assert len(made["choices"][0]["logprobs"]["content"]) == 3
    json.dumps(made)

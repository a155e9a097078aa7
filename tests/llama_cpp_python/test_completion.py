"""Our loop from tokens to text makes the parts that llama_cpp's loop makes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import llama_cpp
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from spac.llama_cpp_python.completion import AnswerText, Asked, completion
from spac.llama_cpp_python.detokenizer import Detokenizer

HEART = "\u2764\ufe0f"
WORDS = [" a", "b", " ", "ab", "\n", "é", HEART, "\U0001f642x"]
STOPS = ["ab", " a b", "b\n", "\n\n", HEART, "x", "aba"]


def of_upstream(split: Any, tokens: list[int], stop: list[str], stream: bool, prompt: Any) -> list[Any]:
    """Return the parts that llama_cpp's own loop makes of these tokens."""

    def generate(*_arguments: Any, **_named: Any) -> Iterator[int]:
        yield from tokens

    split.generate = generate
    try:
        asked = {"prompt": prompt, "max_tokens": 24, "stop": stop, "stream": stream, "model": "m"}
        return list(llama_cpp.Llama._create_completion(split, **asked))
    finally:
        del split.generate


def same(part: Any) -> Any:
    """Return a part without what differs between two calls."""
    return {name: value for name, value in part.items() if name not in ("id", "created")}


@example(tokens=[], words=["b", " a", "b"], stop=["ab"], stream=True, prompt="ab", preserves=False)
@given(
    tokens=st.lists(st.integers(0, 260), max_size=30), words=st.lists(st.sampled_from(WORDS), max_size=12),
    stop=st.lists(st.sampled_from(STOPS), max_size=3), stream=st.booleans(),
    prompt=st.sampled_from(["", "ab", [5, 6]]), preserves=st.booleans(),
)  # fmt: skip
@settings(max_examples=150)
def test_the_parts_are_llama_cpps(split, tokens, words, stop, stream, prompt, preserves):
    """Any tokens, also parts of characters, and words whose characters are split into bytes."""
    for word in words:
        tokens = [*tokens, *split.tokenize(word.encode(), add_bos=False)]
    split.preserve_tokens([split.token_bos()] if preserves else [])
    try:
        expected = of_upstream(split, tokens, stop, stream, prompt)
        n_prompt = len(prompt) if isinstance(prompt, list) else len(split.tokenize(prompt.encode()))
        begun = [] if len(prompt) else [split.token_bos()]
        asked = Asked(24, [each.encode() for each in stop], stream, "m", n_prompt, begun, lambda: False)
        made = list(completion(split, iter(tokens), asked))
    finally:
        split.preserve_tokens([])
    if not stream:
        for each in (expected[0]["usage"], made[0]["usage"]):
            del each["prompt_tokens"], each["total_tokens"]
    assert list(map(same, made)) == list(map(same, expected))
    assert [list(part) for part in made] == [list(part) for part in expected], "the order of the fields"


@pytest.mark.parametrize("stream", [False, True])
def test_a_completion_uses_our_loop(split, stream, monkeypatch):
    made: list[Asked] = []

    def noted(llama: Any, tokens: Iterator[int], asked: Asked) -> Iterator[Any]:
        made.append(asked)
        yield from completion(llama, tokens, asked)

    def ask() -> list[Any]:
        parts = split.create_completion("ab", max_tokens=12, temperature=0.0, stream=stream)
        return list(map(same, parts if stream else [parts]))

    monkeypatch.setattr(split._ctx, "print_timings", lambda: None)
    monkeypatch.setattr("spac.llama_cpp_python.completion.completion", noted)
    monkeypatch.setattr(split, "verbose", True)
    expected = ask()
    monkeypatch.setattr(split, "verbose", False)
    assert ask() == expected
    assert [(each.max_tokens, each.stream, each.model) for each in made] == [(12, stream, split.model_path)]


def test_the_work_for_a_token_does_not_grow():
    """The detokenizer is asked for one token at a time."""
    asked: list[int] = []
    pieces = Detokenizer(lambda token, _special: b"%d " % token, -1)
    join, pieces._join = pieces._join, lambda tokens: asked.append(len(tokens)) or join(tokens)  # type: ignore
    answer = AnswerText(pieces, (), [b"stop"])
    for token in range(200):
        assert answer.push(token)
        assert answer.stopped() is None
        assert list(answer.ready()) == [f"{token} "]
    assert set(asked) == {1}
    assert answer.text == b"".join(b"%d " % token for token in range(200))


@given(st.lists(st.integers(1, 4), max_size=8), st.integers(0, 2))
def test_the_space_behind_a_beginning_token_is_no_text(tokens, n_begun):
    pieces = {1: b"", 2: b" a", 3: b" ", 4: b"b"}
    detokenizer = Detokenizer(lambda token, _special: pieces[token], 1)
    answer = AnswerText(detokenizer, tokens[:n_begun], [])
    for token in tokens[n_begun:]:
        answer.push(token)
    assert answer.text == detokenizer.text(tokens)

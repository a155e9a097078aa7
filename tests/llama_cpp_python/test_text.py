"""Tokens become the text that llama_cpp makes of them, all at once and one after another."""

from __future__ import annotations

import llama_cpp
from hypothesis import given
from hypothesis import strategies as st

from spac.llama_cpp_python.detokenizer import GROWING, Detokenizer


@given(st.lists(st.integers(0, 260), max_size=3 * GROWING), st.integers(0, 3 * GROWING))
def test_the_text_is_llama_cpps(split, tokens, cut):
    """The text is the same for one call, for two calls, and after another list that begins alike."""
    expected = llama_cpp.Llama.detokenize(split, tokens)
    assert split.detokenize(tokens) == expected
    assert split.detokenize(tokens[:cut]) + split.detokenize(tokens[cut:]) == expected
    assert split.detokenize([*tokens[:cut], 5]) == llama_cpp.Llama.detokenize(split, [*tokens[:cut], 5])
    assert split.detokenize(tokens, special=True) == llama_cpp.Llama.detokenize(split, tokens, special=True)


def test_control_tokens_that_are_preserved(split):
    control = split.token_eos()
    tokens = [*split.tokenize(b"ab"), control]
    assert split.detokenize(tokens) == b"ab"
    split.preserve_tokens([control])
    assert split.detokenize(tokens) == b"ab" + split.detokenize([control], special=True) != b"ab"
    split.preserve_tokens([])
    assert split.detokenize(tokens) == b"ab"


def test_a_growing_answer_is_not_gone_through_anew():
    text = Detokenizer(lambda token, _special: b"%d " % token, -1)
    joined = []
    join, text._join = text._join, lambda tokens: joined.append(len(tokens)) or join(tokens)
    tokens = []
    for token in range(4 * GROWING):
        tokens.append(token)
        assert text.text(tokens) == b"".join(b"%d " % each for each in range(token + 1))
    assert set(joined[GROWING + 1 :]) == {1}

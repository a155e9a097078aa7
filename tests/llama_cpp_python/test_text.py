"""Tokens become the text that llama_cpp makes of them, all at once and one after another."""

from __future__ import annotations

import llama_cpp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spac.errors import InputError
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


def test_long_pieces_are_whole():
    """Pieces may be longer than the 32 bytes of llama_cpp's buffer."""
    assert Detokenizer(lambda token, _special: b"x" * token, -1).text([40, 100]) == b"x" * 140


def test_a_growing_answer_is_not_gone_through_anew():
    text = Detokenizer(lambda token, _special: b"%d " % token, -1)
    joined = []
    join, text._join = text._join, lambda tokens: joined.append(len(tokens)) or join(tokens)
    tokens = []
    for token in range(4 * GROWING):
        tokens.append(token)
        assert text.text(tokens) == b"".join(b"%d " % each for each in range(token + 1))
    assert set(joined[GROWING + 1 :]) == {1}


def test_the_space_behind_a_beginning_token_is_no_text():
    pieces = {1: b"", 2: b" a", 3: b" b"}
    text = Detokenizer(lambda token, _special: pieces[token], 1)
    assert text.text([1, 2, 3]) == b"a b"
    assert text.text([2, 3]) == b" a b"
    assert text.text([1, 2] + [3] * GROWING) == b"a" + b" b" * GROWING


def test_a_closed_model_has_no_text(opened):
    llm = opened()
    llm.detokenize([1])
    llm.close()
    with pytest.raises(InputError, match="closed"):
        llm.detokenize([1])

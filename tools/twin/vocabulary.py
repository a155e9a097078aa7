"""Make a twin's vocabulary: made-up words, as many as the named model has tokens.

A word of the chain is a space and one, two or four syllables, and every one is a merge of two tokens before
it. So a text that a twin writes is read back as the tokens that it was written from.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np
from gguf import GGUFWriter, TokenType

from tools.models.tokenizer import SPECIALS, byte_symbols, write_bpe

_SPACE = "Ġ"
# A prime. Multiplication by it, modulo a number that it does not divide, is a permutation.
_MULTIPLIER = 1_000_003
LEAST = 1024
"""The smallest possible size of a vocabulary, in tokens."""


@dataclass(frozen=True)
class Vocabulary:
    """Tokens by id: first the words of the chain, then entries (bytes and parts of words), control tokens,
    and padding up to the vocabulary's size."""

    tokens: list[str]
    merges: list[str]
    n_chain: int  # words: ids 0 to n_chain - 1
    n_entry: int  # ids n_chain to n_chain + n_entry - 1

    @property
    def first_special(self) -> int:
        return self.n_chain + self.n_entry

    def write(self, writer: GGUFWriter, pre: str) -> None:
        """Write the tokenizer's metadata. The first special token begins and ends texts. No token is added
        without a request."""
        n_pad = len(self.tokens) - self.first_special - len(SPECIALS)
        types = [TokenType.NORMAL] * self.first_special
        types += [TokenType.CONTROL] * len(SPECIALS) + [TokenType.UNUSED] * n_pad
        end = self.first_special
        write_bpe(writer, pre, self.tokens, types, self.merges, end=end, end_of_turn=end + 2, pad=end + 3)


def make_vocabulary(n_vocab: int, seed: int) -> Vocabulary:
    """Return a vocabulary of exactly `n_vocab` tokens. Raise ValueError below `LEAST`."""
    if n_vocab < LEAST:
        raise ValueError(f"a vocabulary of {n_vocab} tokens is too small; take {LEAST} or more")
    n_syllable = 60 if n_vocab > 20_000 else 12
    syllables = [c + v for c, v in product("bdfghjklmnprstvz", "aeiou")][:n_syllable]
    pairs = list(product(syllables, syllables))
    merges = [f"{s[0]} {s[1]}" for s in syllables]
    merges += [f"{_SPACE} {s}" for s in syllables]
    merges += [
        f"{_SPACE}{a} {b}" for a, b in pairs
    ]  # before the bare pairs: a word is read from its space on
    merges += [f"{a} {b}" for a, b in pairs]
    words = [_SPACE + s for s in syllables] + [f"{_SPACE}{a}{b}" for a, b in pairs]
    entries = [*byte_symbols(), *syllables, *(a + b for a, b in pairs)]
    n_long = n_vocab - len(words) - len(entries) - len(SPECIALS) - 16  # a few are left for padding
    n_long = max(0, min(n_long, len(pairs) ** 2))
    for i in range(n_long):
        first, last = divmod((i * _MULTIPLIER + seed) % len(pairs) ** 2, len(pairs))
        head, tail = "".join(pairs[first]), "".join(pairs[last])
        merges.append(f"{_SPACE}{head} {tail}")
        words.append(_SPACE + head + tail)
    order = np.random.default_rng([seed, 1]).permutation(len(words))
    tokens = [words[i] for i in order] + entries + SPECIALS
    tokens += [f"<|unused_{i}|>" for i in range(len(tokens), n_vocab)]
    return Vocabulary(tokens, merges, len(words), len(entries))

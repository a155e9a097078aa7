"""Tokens to text for `spac.Llama`, without going through a growing answer anew at every token."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

GROWING = 32
"""Tokens from which on a list is taken for an answer that grows."""


class Detokenizer:
    """llama_cpp asks for the text of all tokens so far at every token. It is that of the pieces in turn, so
    only what was added is new."""

    def __init__(self, piece: Callable[[int, bool], bytes], begin: int) -> None:
        """`piece(token, special)`: a token's bytes; `begin`: the beginning token, or -1."""
        self._piece, self._begin = piece, begin
        self._preserved: frozenset[int] = frozenset()
        self._pieces: dict[int, bytes] = {}
        self._known: list[int] = []
        self._text = b""

    def preserve(self, tokens: Collection[int]) -> None:
        """Control tokens whose text counts from now on; that of the others does not."""
        preserved = frozenset(tokens)
        if preserved != self._preserved:
            self._preserved, self._pieces, self._known, self._text = preserved, {}, [], b""

    def text(self, tokens: Sequence[int]) -> bytes:
        """The bytes of `tokens`; a space that follows the beginning token is not text, as in llama_cpp."""
        if len(tokens) < GROWING:
            text = self._join(tokens)
        else:
            known = len(self._known)
            if list(tokens[:known]) != self._known:
                known, self._text = 0, b""
            self._text += self._join(tokens[known:])
            self._known = list(tokens)
            text = self._text
        begins = len(tokens) > 0 and tokens[0] == self._begin
        return text[1:] if begins and text[:1] == b" " else text

    def _join(self, tokens: Sequence[int]) -> bytes:
        pieces = self._pieces
        for token in tokens:
            if token not in pieces:
                pieces[token] = self._piece(token, token in self._preserved)
        return b"".join([pieces[token] for token in tokens])

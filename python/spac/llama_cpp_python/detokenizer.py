"""The detokenizer of `spac.Llama`, which does not convert a growing answer anew at every token."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

GROWING = 32
"""The number of tokens from which a list is treated as a growing answer."""


class Detokenizer:
    """A detokenizer that keeps the text of an answer, and adds the text of new tokens.

    llama_cpp asks at every token for the text of all tokens so far. This text is the tokens' pieces in turn.
    """

    def __init__(self, piece: Callable[[int, bool], bytes], begin: int) -> None:
        """Make a detokenizer that keeps no text yet.

        `piece(token, special)` returns a token's bytes. `begin` is the beginning token, or -1.
        """
        self._piece = piece
        self.begin = begin
        """The beginning token, or -1."""
        self._preserved: frozenset[int] = frozenset()
        self._pieces: dict[int, bytes] = {}
        self._known: list[int] = []
        self._text = b""

    def preserve(self, tokens: Collection[int]) -> None:
        """Set the control tokens whose text counts from now on; other control tokens have no text."""
        preserved = frozenset(tokens)
        if preserved != self._preserved:
            self._preserved, self._pieces, self._known, self._text = preserved, {}, [], b""

    def text(self, tokens: Sequence[int]) -> bytes:
        """Return the bytes of `tokens`, without a space after the beginning token, as llama_cpp does."""
        if len(tokens) < GROWING:
            text = self._join(tokens)
        else:
            known = len(self._known)
            if list(tokens[:known]) != self._known:
                known, self._text = 0, b""
            self._text += self._join(tokens[known:])
            self._known = list(tokens)
            text = self._text
        begins = len(tokens) > 0 and tokens[0] == self.begin
        return text[1:] if begins and text[:1] == b" " else text

    def piece(self, token: int) -> bytes:
        """Return the bytes of one token, with a space at the beginning if it has one."""
        found = self._pieces.get(token)
        return self._join([token]) if found is None else found

    def _join(self, tokens: Sequence[int]) -> bytes:
        pieces = self._pieces
        for token in tokens:
            if token not in pieces:
                pieces[token] = self._piece(token, token in self._preserved)
        return b"".join([pieces[token] for token in tokens])

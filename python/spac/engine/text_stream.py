"""Texts that arrive in parts: incomplete characters and possible stop strings are held back."""

from __future__ import annotations

import codecs
from collections.abc import Sequence


class StopSearch:
    """Ends a text that arrives in parts at its first stop string.

    It holds back an end of the text that may be the beginning of a stop string.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = [stop for stop in stops if stop]
        self._held = ""
        self.met: str | None = None
        """The string that ended the text, or None."""

    def push(self, text: str) -> str:
        """Return the text that is known to precede any stop string; "" once one was met."""
        if self.met is not None:
            return ""
        held = self._held + text
        ends = [(held.find(each) + len(each), each) for each in self._stops if each in held]
        if ends:
            # The string that is complete first wins; of two that end together, the longer one wins.
            end, self.met = min(ends, key=lambda found: (found[0], -len(found[1])))
            self._held = ""
            return held[: end - len(self.met)]
        kept = max((_overlap(held, each) for each in self._stops), default=0)
        self._held = held[len(held) - kept :]
        return held[: len(held) - kept]

    def rest(self) -> str:
        """Return the text that was held back, when the text is over."""
        held, self._held = self._held, ""
        return held


class TextStream:
    """Turns the bytes of tokens into text that ends before its first stop string.

    A character that several tokens share appears when it is complete.
    """

    def __init__(self, stop: Sequence[str] = ()) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._search = StopSearch(stop)

    @property
    def stopped(self) -> bool:
        """True after a stop string, before which the text ends."""
        return self._search.met is not None

    def push(self, data: bytes) -> str:
        """Return the text that is now certain; "" while a character or stop string may be incomplete."""
        return self._search.push(self._decoder.decode(data))

    def finish(self) -> str:
        """Return the text that was held back, at the end of the text."""
        return self._search.push(self._decoder.decode(b"", final=True)) + self._search.rest()


def _overlap(text: str, stop: str) -> int:
    """Return the number of characters at the text's end that may begin the stop string."""
    most = min(len(text), len(stop) - 1)
    return next((n for n in range(most, 0, -1) if text.endswith(stop[:n])), 0)

"""A converter from tokens to text that holds back incomplete characters and possible stop strings."""

from __future__ import annotations

import codecs
from collections.abc import Sequence


class TextStream:
    """Turns the bytes of tokens into text.

    A character that several tokens share appears when it is complete.
    """

    def __init__(self, stop: Sequence[str] = ()) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._stop = tuple(text for text in stop if text)
        self._held = ""
        self.stopped = False
        """True after a stop string, before which the text ends."""

    def push(self, data: bytes) -> str:
        """Return the text that is now certain; "" while a character or stop string may be incomplete."""
        return self._release(self._decoder.decode(data))

    def finish(self) -> str:
        """Return the text that was held back, at the end of the text."""
        text = self._release(self._decoder.decode(b"", final=True)) + self._held
        self._held = ""
        return text

    def _release(self, text: str) -> str:
        if self.stopped:
            return ""
        text = self._held + text
        found = [at for at in (text.find(stop) for stop in self._stop) if at >= 0]
        if found:
            self.stopped, self._held = True, ""
            return text[: min(found)]
        keep = max((_overlap(text, stop) for stop in self._stop), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]


def _overlap(text: str, stop: str) -> int:
    """Return the length of the longest end of `text` that begins `stop` and is shorter than it."""
    for size in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:size]):
            return size
    return 0

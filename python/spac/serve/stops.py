"""The search for the first stop sequence in a text that arrives in parts."""

from __future__ import annotations

from collections.abc import Sequence


class Stops:
    """Reads a text as it arrives, and ends it at the first stop sequence.

    It holds back an end of the text that may be the beginning of a stop sequence.
    """

    def __init__(self, sequences: Sequence[str]) -> None:
        self._sequences = [sequence for sequence in sequences if sequence]
        self._held = ""
        self.met: str | None = None
        """The sequence that ended the text, or None."""

    def push(self, text: str) -> str:
        """Return the text that is known to precede any stop sequence; "" once one was met."""
        if self.met is not None:
            return ""
        held = self._held + text
        ends = [(held.find(each) + len(each), each) for each in self._sequences if each in held]
        if ends:
            # The sequence that is complete first wins; of two that end together, the longer one wins.
            end, self.met = min(ends, key=lambda found: (found[0], -len(found[1])))
            self._held = ""
            return held[: end - len(self.met)]
        kept = max((_overlap(held, each) for each in self._sequences), default=0)
        self._held = held[len(held) - kept :]
        return held[: len(held) - kept]

    def rest(self) -> str:
        """Return the text that was held back, when the text is over."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, sequence: str) -> int:
    """Return the number of characters at the text's end that may begin the sequence."""
    most = min(len(text), len(sequence) - 1)
    return next((n for n in range(most, 0, -1) if text.endswith(sequence[:n])), 0)

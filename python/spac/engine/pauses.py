"""The steps behind a pause. They take longer than others, so nothing is learned from their times."""

from __future__ import annotations

from time import monotonic

PAUSE_S = 5.0
"""The seconds without a step that make a pause. ggml erases CUDA graphs that were not used for 10 s."""
STEPS = 2
"""The number of steps behind a pause that do not count: one without a captured graph, one that captures."""


class Pauses:
    """Follows the steps of a loop, and tells if the last one came behind a pause."""

    def __init__(self) -> None:
        self._end: float | None = None
        self._left = 0

    @property
    def settling(self) -> bool:
        """True if the last step's times are not those of other steps."""
        return self._left > 0

    def step(self, seconds: float, now: float | None = None) -> None:
        """Take a step that has ended at `now`, in seconds, and took `seconds`."""
        now = monotonic() if now is None else now
        if self._end is not None and now - seconds - self._end >= PAUSE_S:
            self._left = STEPS
        else:
            self._left = max(0, self._left - 1)
        self._end = now

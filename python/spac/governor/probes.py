"""When to try another draft length than the one in force, and which: cheap, and bounded by a budget."""

from __future__ import annotations

import numpy as np

from spac.governor.model import BoolArray, FloatArray

SHARE = 0.01
"""Of the time, that probes may cost."""
STEPS = 2
"""Of a probe: the first one's time does not count where changing costs time."""
_AT_FIRST, _SAVINGS = 4.0, 16.0  # steps of the present best that the budget holds: at first, at most
_SOON, _RARELY = 8, 32  # steps between probes
_WORTH = 1.01  # times the present best, that a length must promise


class Probes:
    """A budget of seconds: earned with every step, spent on what a probe really costs.

    What pays off costs nothing, and more may follow at once; what changes nothing comes ever more rarely.
    """

    def __init__(self) -> None:
        self._budget: float | None = None
        self._best_s = 0.0
        self._next, self._spacing = 0, _SOON

    def earn(self, step_s: float, best_step_s: float) -> None:
        """A step took step_s; a step of the present best takes best_step_s."""
        if self._budget is None:
            self._budget = _AT_FIRST * best_step_s
        self._best_s = best_step_s
        self._budget = min(self._budget + SHARE * step_s, _SAVINGS * best_step_s)

    def pay(self, seconds: float) -> None:
        """A probe's step took so much longer than the present best would have for the same tokens; less than
        0 where it was the better choice. What a spike of the machine costs is not owed for long."""
        if self._budget is not None:
            self._budget = max(self._budget - seconds, -_SAVINGS * self._best_s)

    def due(self, step: int) -> bool:
        """Whether it is time for one."""
        return step >= self._next and self._budget is not None and self._budget > 0

    def hurry(self, step: int) -> None:
        """Things have changed: probe soon again."""
        self._spacing = _SOON
        self._next = min(self._next, step + _SOON)

    def pick(
        self, step: int, k: int, allowed: BoolArray, promise: FloatArray, loss: FloatArray
    ) -> int | None:
        """The length that promises most for what it costs, if any is worth it and affordable.

        k: in force; allowed: bool [K + 1]; promise: float64 [K + 1], the Θ that a length may yet turn out to
        have, as a ratio to that of k; loss: float64 [K + 1], seconds that a probe is expected to cost.
        """
        worth = allowed & (promise > _WORTH) & (loss <= (self._budget or 0.0))
        worth[k] = False
        if not worth.any():
            self._next = step + _SOON
            return None
        ratio = np.where(worth, (promise - 1) / np.maximum(loss / self._best_s, 0.1), -1.0)
        ratio /= 1 + np.abs(np.arange(len(ratio)) - k) / 2
        self._next = step + self._spacing
        self._spacing = min(2 * self._spacing, _RARELY)
        return int(ratio.argmax())

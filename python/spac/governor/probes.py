"""Probes: the choice of when to try another draft length and which one, bounded by a budget."""

from __future__ import annotations

import numpy as np

from spac.machine.arrays import BoolArray, Float64Array

SHARE = 0.01
"""The share of the time that probes may cost."""
STEPS = 2
"""The number of steps of a probe where a change costs time, because the first one's time does not count."""
_AT_FIRST = 1.0  # the budget at first, in steps of the present best, so that first probes need not wait
_SAVINGS = 16.0  # the largest budget and debt, in such steps, so that the past does not decide for long
_SOON, _RARELY = 8, 32  # steps between probes: after a change, and after probes that changed nothing
_WORTH = 1.01  # factor over the present best that a length must promise; less is not worth a probe


class Probes:
    """Keeps a budget of seconds. Every step adds to it, and a probe takes from it what it really costs.

    A probe that pays off costs nothing, and more may follow at once. Probes that change nothing become ever
    rarer.
    """

    def __init__(self) -> None:
        self._budget: float | None = None
        self._best_s = 0.0
        self._next, self._spacing = 0, _SOON

    def earn(self, step_s: float, best_step_s: float) -> None:
        """Add to the budget. A step took step_s; a step of the present best takes best_step_s."""
        if self._budget is None:
            self._budget = _AT_FIRST * best_step_s
        self._best_s = best_step_s
        self._budget = min(self._budget + SHARE * step_s, _SAVINGS * best_step_s)

    def pay(self, seconds: float) -> None:
        """Take a probe's cost from the budget.

        seconds: how much longer the probe's step took than the present best would have for the same tokens;
        below 0 where the probe was the better choice. The debt is bounded, so the cost of a spike of the
        machine does not stop probes for long.
        """
        if self._budget is not None:
            self._budget = max(self._budget - seconds, -_SAVINGS * self._best_s)

    def due(self, step: int) -> bool:
        """Return True if it is time for a probe and the budget is not spent."""
        return step >= self._next and self._budget is not None and self._budget > 0

    def hurry(self, step: int) -> None:
        """Schedule a probe soon, because conditions have changed."""
        self._spacing = _SOON
        self._next = min(self._next, step + _SOON)

    def pick(
        self, step: int, k: int, allowed: BoolArray, promise: Float64Array, loss: Float64Array
    ) -> int | None:
        """Return the length that promises most for its cost, or None if none is worth it and affordable.

        k: the length in force. allowed: bool [K + 1]. promise: float64 [K + 1], the Θ that a length may yet
        turn out to have, as a ratio to that of k. loss: float64 [K + 1], the seconds that a probe is expected
        to cost.
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

"""The time of a hand-off, estimated from the CPU's waits behind whole layers.

A whole layer has all of its experts resident and needs no hand-off, so the CPU takes no part in it. Behind m
such layers the CPU waits

    R + m · (dense + D),    R = dense + hand-off

where R is its usual wait, and D is the device's time for the experts of each, d · (distinct experts). So the
waits show hand-off - D = R - (wait - R) / m, which is the time that a whole layer saves. The hand-off itself
is this difference plus D, with the d that is believed now. If d is wrong, D and the hand-off are wrong by the
same amount, and their difference is right.
"""

from __future__ import annotations

from collections import deque
from statistics import median

import numpy as np

from spac.machine.arrays import Float64Array

_WINDOW = 64  # latest steps, whose median counts, because waits scatter
_BELIEVED = 16  # steps before the measured time replaces the start value; fewer scatter too much


class HandOffTime:
    """The seconds of a hand-off."""

    def __init__(self, start: float | None) -> None:
        """Set the start value in seconds, or None if it is unknown."""
        self._start = start
        self._steps: deque[tuple[float, float]] = deque(maxlen=_WINDOW)  # (hand-off - D, D at factor 1)

    def seconds(self, factor: float) -> float | None:
        """Return the seconds of a hand-off, or None before they are known.

        `factor` is the factor of the device's start times that is believed now.
        """
        if len(self._steps) < _BELIEVED:
            return self._start
        net = median(net for net, _ in self._steps)
        return max(0.0, net + factor * median(work for _, work in self._steps))

    def observe(self, wait: Float64Array, late: Float64Array, work: Float64Array, usual: float) -> None:
        """Learn from a step.

        The arrays are float64 [L] in seconds. `wait` has the CPU's waits, 0 where it was not needed. `late`
        says how much later than the CPU the device ended a layer. `work` is the device's computing time at
        factor 1. `usual` is R.
        """
        waited = np.flatnonzero(wait > 0)
        between = np.diff(waited) - 1
        behind = between > 0
        if not behind.any():
            return
        first, last, n_whole = waited[:-1][behind], waited[1:][behind], between[behind]
        spared = usual - (wait[last] - late[first] - usual) / n_whole
        before = np.append(0.0, work.cumsum())
        inside = float((before[last] - before[first + 1]).sum() / n_whole.sum())
        self._steps.append((float(np.median(spared)), inside))

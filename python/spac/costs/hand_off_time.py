"""What a layer is spared when all of its experts are resident, from the waits behind such layers.

The CPU knows nothing of them. Behind m of them it waits

    R + m · (dense + D),    R = dense + hand-off

where R is its usual wait, and D what the device computes in each, d · (distinct experts). So they show
hand-off - D = R - (wait - R) / m, which is what counts. The hand-off by itself is that and D, by the d that
is believed now: where d is wrong, both are, and what counts is right.
"""

from __future__ import annotations

from collections import deque
from statistics import median

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]

_WINDOW = 64  # steps
_BELIEVED = 16  # of them, before anything is


class HandOffTime:
    """Seconds of a hand-off."""

    def __init__(self, start: float | None) -> None:
        """start: what is known of it."""
        self._start = start
        self._steps: deque[tuple[float, float]] = deque(maxlen=_WINDOW)  # hand-off - D; D by a factor of 1

    def seconds(self, factor: float) -> float | None:
        """factor: what is believed of the device's times, as a ratio; None before it is known."""
        if len(self._steps) < _BELIEVED:
            return self._start
        net = median(net for net, _ in self._steps)
        return max(0.0, net + factor * median(work for _, work in self._steps))

    def observe(self, wait: FloatArray, late: FloatArray, work: FloatArray, usual: float) -> None:
        """A step. All float64 [L], seconds: the CPU's waits, 0 where it was not needed; how much later than
        it the device was with a layer; what the device computed there, by a factor of 1. usual: R."""
        waited = np.flatnonzero(wait > 0)
        between = np.diff(waited) - 1
        behind = between > 0
        if not behind.any():
            return
        first, last, n_whole = waited[:-1][behind], waited[1:][behind], between[behind]
        spared = usual - (wait[last] - late[first] - usual) / n_whole
        before = np.append(0.0, work.cumsum())
        inside = float((before[last] - before[first + 1]).sum() / n_whole.sum())
        self.add(float(np.median(spared)), inside)

    def add(self, spared: float, inside: float) -> None:
        """What a step showed: hand-off - D, and D by a factor of 1, of each of its whole layers."""
        self._steps.append((spared, inside))

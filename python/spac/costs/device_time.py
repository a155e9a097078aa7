"""The device's time for an expert, and that of a hand-off, estimated from the CPU's waits for layers.

In a layer, device and CPU begin together. The later one ends it, and the next layer's dense part follows:

    wait(i + 1) = R + max(0, D_i - H_i),    D_i = d · (distinct experts on the device)

H_i is timed, and R is what the step's layers have in common. If d is too small, it is contradicted by layers
in which the device was slower. If d is too large, it is contradicted by layers in which the CPU would have
waited but did not. The estimate is the d of least |residual|, summed over layers and, with slow forgetting,
over steps. Waits that are long for another reason (another program, a copy in the way) do not agree on any d.

If an expert is hidden behind the CPU in all layers, d has only an upper bound, and every d below it fits
equally well. The estimate then stays at its start. It leaves the start only for enough evidence: a factor of
2 costs `_DOUBT`.

The time of a hand-off comes from the CPU's waits behind whole layers. These have all of their experts
resident and need no hand-off. Behind m such layers the CPU waits

    R + m · (dense + D),    R = dense + hand-off

with the D of each. So the waits show hand-off - D = R - (wait - R) / m, which is the time that a whole layer
saves. The hand-off itself is this difference plus D, with the d that is believed now. If d is wrong, D and
the hand-off are wrong by the same amount, and their difference is right.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from statistics import median

import numpy as np

from spac.costs.robust import SHARE
from spac.machine.arrays import BoolArray, Float64Array

_FACTORS = 2.0 ** np.arange(-12, 12.25, 0.25)  # candidates for d / start, as wrong as a guess may be
_FIRST = len(_FACTORS) // 2  # index of factor 1
_DOUBT = 0.25  # loss of a factor of 2, in usual waits per layer, summed over the remembered steps
_MOST = 4.0  # upper limit of a residual, in usual waits, because longer ones are no better evidence
_WINDOW = 64  # latest steps, whose median counts, because waits scatter
_BELIEVED = 16  # steps before the measured time replaces the start value; fewer scatter too much


class DeviceTime:
    """The device's seconds for a distinct expert: each pool's start value times one common factor."""

    def __init__(self, start: Sequence[float], members: Sequence[BoolArray]) -> None:
        """Set the start values.

        `start` has the seconds of an expert for each pool, above 0. `members` has for each pool a bool [L],
        true for its layers.
        """
        self._start = list(start)
        self._each = np.zeros(len(members[0]))  # seconds of an expert of every layer, [L], at factor 1
        for seconds, mine in zip(start, members, strict=True):
            self._each[mine] = seconds
        self._at = _FIRST
        self._loss: Float64Array = np.zeros(len(_FACTORS))
        self._doubt = _DOUBT * np.abs(np.log2(_FACTORS))

    @property
    def units(self) -> list[float]:
        """The seconds of an expert for each pool."""
        return [seconds * self.factor for seconds in self._start]

    @property
    def factor(self) -> float:
        """The factor of the start values that is believed now."""
        return float(_FACTORS[self._at])

    def seconds(self, distinct: Float64Array) -> Float64Array:
        """Return the device's seconds, float64 [L], for these numbers of distinct experts, [L]."""
        return np.asarray(self._each * distinct * self.factor)

    def observe_waits(self, distinct: Float64Array, host: Float64Array, after: Float64Array, seen: BoolArray,
                      usual: float) -> float:  # fmt: skip
        """Learn from a step in which the CPU waited for layers, and return R of the step.

        `usual` is R before this step. The arrays are [L - 1], for the layers before those that the CPU waited
        for. They have the distinct experts on the device, the CPU's seconds, the seconds of its wait after
        the layer, and True for the layers that count.
        """
        work = self._each[: len(distinct)][seen] * distinct[seen]
        late = np.maximum(_FACTORS[:, None] * work - host[seen], 0.0)
        rest = after[seen] - late
        # If the device has equal work in all layers and all wait for it, R and D cannot be distinguished.
        order, n = np.sort(rest, axis=1), rest.shape[1]  # numpy's own median takes several times as long
        common = np.clip((order[:, (n - 1) // 2] + order[:, n // 2]) / 2, usual / 2, usual * 2)
        off = np.abs(rest - common[:, None]) / usual
        self._learn(np.minimum(off, _MOST).mean(axis=1))
        return float(common[self._at])

    def observe_total(self, distinct: Float64Array, seconds: float) -> None:
        """Learn from a step that the device computed alone.

        `distinct` has the numbers of experts, [L]. All of them together took `seconds`.
        """
        total = float((self._each * distinct).sum())
        if total > 0 and seconds > 0:
            self._learn(np.minimum(np.abs(_FACTORS * total / seconds - 1), _MOST))

    def _learn(self, loss: Float64Array) -> None:
        self._loss *= 1.0 - SHARE
        self._loss += loss
        self._at = int((self._loss + self._doubt).argmin())


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

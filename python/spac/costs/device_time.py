"""What the device takes for an expert, from how long the CPU waits for the next layer.

In a layer, device and CPU begin together; the later one ends it, and the next layer's dense part follows:

    wait(i + 1) = R + max(0, D_i - H_i),    D_i = d · (distinct experts on the device)

H_i is timed, R is what the step's layers have in common. Of a d that is too small, layers where the device
was slower than it show; of one that is too large, all those do that should have been waited for and were not.
So the d of least |residual|, summed over layers and, forgetting slowly, over steps: waits that are long for
another reason (another program, a copy in the way) do not agree on any d, and an expert hidden behind the CPU
in all layers has a bound, and below that any d is as good as any other. Then it stays what it was at the
start, and it leaves that for good reasons only: a factor of 2 costs `_DOUBT`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from spac import _core

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]

_FACTORS = 2.0 ** np.arange(-12, 12.25, 0.25)
_FIRST = len(_FACTORS) // 2  # where it is 1
_DOUBT = 0.25  # in usual waits per layer, summed over the steps that are remembered
_MOST = 4.0  # of a residual, in usual waits: what is longer is no better evidence


class DeviceTime:
    """Seconds of a distinct expert on the device: of every pool those of the start, times one factor."""

    def __init__(self, start: Sequence[float], members: Sequence[BoolArray], share: float) -> None:
        """start: by pool, above 0; members: bool [L] each, its layers; share: of a step in what is known."""
        self._start = list(start)
        self._each = np.zeros(len(members[0]))  # of an expert of every layer
        for seconds, mine in zip(start, members, strict=True):
            self._each[mine] = seconds
        self._kept = 1.0 - share
        self._at: npt.NDArray[np.int32] = np.array([_FIRST], np.int32)
        self._loss: FloatArray = np.zeros(len(_FACTORS))
        self._doubt = _DOUBT * np.abs(np.log2(_FACTORS))

    @property
    def units(self) -> list[float]:
        """By pool, in seconds."""
        return [seconds * self.factor for seconds in self._start]

    @property
    def factor(self) -> float:
        """Of the times of the start."""
        return float(_FACTORS[self._at[0]])

    def seconds(self, distinct: FloatArray) -> FloatArray:
        """float64 [L]: of these numbers of experts, [L]."""
        return np.asarray(self._each * distinct * self.factor)

    def late(self, distinct: FloatArray, host: FloatArray) -> float:
        """Seconds that the CPU waited for the device beside the usual; host: float64 [L], its own."""
        return float(np.maximum(self.seconds(distinct) - host, 0.0).sum())

    def observe_waits(self, distinct: FloatArray, host: FloatArray, after: FloatArray, seen: BoolArray,
                      usual: float) -> float:  # fmt: skip
        """A step whose layers were waited for; returns R, which was `usual`. The rest are [L - 1], of the
        layers before those that were waited for: experts, seconds of the CPU, and of its wait after them."""
        work = self._each[: len(distinct)][seen] * distinct[seen]
        late = np.maximum(_FACTORS[:, None] * work - host[seen], 0.0)
        rest = after[seen] - late
        # Where all layers wait for a device with as much to do in each, R and D cannot be told apart.
        common = np.clip(np.median(rest, axis=1), usual / 2, usual * 2)
        off = np.abs(rest - common[:, None]) / usual
        self._learn(np.minimum(off, _MOST).mean(axis=1))
        return float(common[self._at[0]])

    def observe_total(self, distinct: FloatArray, seconds: float) -> None:
        """A step that the device computed alone: all its experts took `seconds`; distinct: [L]."""
        total = float((self._each * distinct).sum())
        if total > 0 and seconds > 0:
            self._learn(np.minimum(np.abs(_FACTORS * total / seconds - 1), _MOST))

    def _learn(self, loss: FloatArray) -> None:
        self._loss *= self._kept
        self._loss += loss
        self._at[0] = (self._loss + self._doubt).argmin()

    def make_fast(self) -> _core.LayerWaits:
        """In C++ (csrc/core/layer_waits.h), on the same arrays: what this learns, and what `hand_off_time`
        does."""
        from spac import _core  # here, for options are read before the library is loaded

        arrays: dict[str, npt.NDArray[np.generic]] = {
            "each": self._each, "loss": self._loss, "at": self._at, "factors": _FACTORS, "doubt": self._doubt
        }  # fmt: skip
        return _core.LayerWaits(arrays, self._kept, _MOST)

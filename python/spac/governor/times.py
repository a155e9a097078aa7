"""The times of steps, learned while they run. They are robust against a noisy machine, and usable early."""

from __future__ import annotations

import math
from collections import deque

import numpy as np

from spac.machine.arrays import BoolArray, Float64Array, Int32Array

KEPT = 9
"""The number of latest observations whose median counts. Four interrupted ones do not change it much."""
# Doubts: the shares by which a time may be too long.
_MOST = 0.6  # the largest doubt, also without an observation
_DOUBT = np.array([_MOST] + [0.17 / n**0.5 for n in range(1, KEPT + 1)])  # by observations, 0 … KEPT
_BEYOND = 0.3  # the largest doubt beyond all sizes seen, where the average slope is known
_SPEED_STEPS = 5  # latest steps, whose median shows a jump of the speed; two interrupted ones do not
_CALM = 1.5  # factor from the speed so far beyond which that median is a jump
_SPEED_RISE = 1.04  # largest factor of a change in one step without a jump, because single steps scatter
_SPEED_LASTS = 50  # steps over which the speed returns to 1
_AGING = 4e-4  # growth of a doubt's square per step since the last observation; 900 steps reach `_MOST`
_PLAUSIBLE = 1.25  # largest ratio to the time of a larger size; a longer time was interrupted


_WINDOW = 0.3  # weight of the latest draft in the mean of predicted windows


class SizeTimes:
    """Estimates a time by batch size from the median of each size's last observations.

    Times are monotone, and interpolated between sizes. Observations come in units of the machine's present
    speed, see `MachineSpeed`. An observation in passing comes just after a change of the batch size, when
    graphs are built anew. It can only be too long, so it counts until two better ones are there. Of two
    observations the shorter one holds, because interruptions only lengthen.
    """

    def __init__(self, n: int) -> None:
        self._n = n
        self._kept: list[deque[float]] = [deque(maxlen=KEPT) for _ in range(n)]
        self._passing = [math.inf] * n
        self._seen = [0] * n  # the step of the last observation
        self._speed = [1.0] * n  # the unit of the last observation
        self._time = np.full(n, np.nan)
        self._before: Float64Array | None = None
        self._sizes = np.arange(1, n + 1, dtype=np.float64)

    def start(self, times: Float64Array) -> None:
        """Start with earlier times of sizes 1, 2, …. Their shape holds for sizes that have not been seen."""
        self._before = times[: self._n]

    def add(self, size: int, seconds: float, step: int, *, passing: bool = False, speed: float = 1.0) -> None:
        """Add an observation of a batch of `size`, in units of `speed`."""
        i, kept = size - 1, self._kept[size - 1]
        self._seen[i], self._speed[i] = step, speed
        if passing:
            self._passing[i] = min(self._passing[i], seconds)
        else:
            kept.append(seconds)
        if len(kept) < 2:
            self._time[i] = min([self._passing[i], *kept])
        elif not passing:
            self._time[i] = sorted(kept)[(len(kept) - 1) // 2]

    def has(self, size: int) -> bool:
        """Return True if the size has been seen."""
        return not math.isnan(self._time[size - 1])

    def estimate(self, extra: Float64Array) -> Float64Array:
        """Return the times, float64 [n], such that times + extra grow with the size.

        extra: float64 [n], the other costs of these sizes, which interpolation leaves out. Beyond the largest
        size seen, times grow by the average slope so far. The times are zeros when nothing was seen; nothing
        is raised.
        """
        time, weights = self._completed()
        seen = ~np.isnan(time)
        sizes, values = self._sizes[seen], time[seen]
        if not len(values):
            return np.zeros(self._n)
        values = values + extra[seen]
        shortest = np.minimum.accumulate(values[::-1])[::-1]
        values = _monotone(np.minimum(values, _PLAUSIBLE * shortest), weights[seen]) - extra[seen]
        times = np.interp(self._sizes, sizes, values)
        last = int(sizes[-1])
        if last < self._n:
            slope = (values[-1] - values[0]) / (sizes[-1] - sizes[0]) if len(values) > 1 else values[0] / last
            times[last:] += max(0.0, float(slope)) * np.arange(1, self._n - last + 1)
        return np.asarray(np.maximum.accumulate(times + extra) - extra)

    def _completed(self) -> tuple[Float64Array, Float64Array]:
        """Return the times, nan where nothing is known, and their weights; float64 [n] each."""
        weights = np.array([len(kept) or 0.5 for kept in self._kept])
        before = self._before
        if before is None:
            return self._time, weights
        seen = ~np.isnan(self._time[: len(before)])
        if not seen.any():
            return np.append(before, np.full(self._n - len(before), np.nan)), weights
        time = self._time.copy()
        scale = float(np.median(time[: len(before)][seen] / before[seen]))
        time[: len(before)][~seen] = scale * before[~seen]
        return time, weights

    def shift(self, seconds: Float64Array) -> None:
        """Lengthen all observations so far. seconds: float64 [n], by size."""
        for i, by in enumerate(seconds.tolist()):
            self._kept[i] = deque((value + by for value in self._kept[i]), KEPT)
            self._passing[i] += by
        self._time += seconds

    def doubt(self, total: Float64Array, step: int, speed: float) -> Float64Array:
        """Return by how much a time may be too long, as a share of it, float64 [n].

        total: float64 [n], the estimate together with the other costs of these sizes.

        The time of a seen size is doubtful if its observations are few or old, or if a larger size takes
        less. It is also doubtful if the machine has become slower since, because that may not have slowed
        this size. The time of a size between two seen ones may be as short as that of the smaller one,
        because times jump. Beyond the largest seen size the same holds, but the doubt is at most `_BEYOND`.
        Times from before are as doubtful as those.
        """
        seen = ~np.isnan(self._time)
        few = _DOUBT[[len(kept) for kept in self._kept]]
        age = step - np.array(self._seen, np.float64)
        time = np.where(seen, self._time, np.inf)
        shortest = np.minimum.accumulate(time[::-1])[::-1]
        held = np.where(time > _PLAUSIBLE * shortest, _MOST, np.minimum(_MOST, few + np.sqrt(age * _AGING)))
        below = np.maximum.accumulate(np.where(seen, total, 0.0))
        gap = np.minimum(
            1 - below / np.maximum(total, 1e-12), np.where(np.isfinite(shortest), _MOST, _BEYOND)
        )
        if self._before is not None:  # their shape is known, and their scale is learned
            gap[: len(self._before)] = _BEYOND
        slowed = np.minimum(np.array(self._speed) / speed, 1.0)
        return np.maximum(np.where(seen, 1 - (1 - held) * slowed, gap), 0.0)


def _monotone(values: Float64Array, weights: Float64Array) -> Float64Array:
    """Return the growing sequence that is next to the values in weighted least squares, float64 [n].

    Neighbours that are out of order share their mean.
    """
    blocks: list[tuple[float, float, int]] = []  # mean, weight, members
    for value, weight in zip(values.tolist(), weights.tolist(), strict=True):
        members = 1
        while blocks and blocks[-1][0] > value:
            mean, heavy, count = blocks.pop()
            value = (value * weight + mean * heavy) / (weight + heavy)
            weight, members = weight + heavy, members + count
        blocks.append((value, weight, members))
    return np.array([mean for mean, _, members in blocks for _ in range(members)])


class MachineSpeed:
    """Estimates how much slower the machine is now than in the units of kept times; 1 at first.

    All sizes share it. Other processes or a warm processor slow the next step too, whatever its length. So
    times that were observed at different moments stay comparable.

    The factor follows medians, because slow steps are slower than fast ones are fast, and a mean would drift.
    It moves slowly, and at once if the last steps are off by more than `_CALM`. It also returns to 1. If one
    length is always in force, a slower machine cannot be distinguished from a longer time of that length.
    After a while the latter is the safer belief.
    """

    def __init__(self) -> None:
        self.factor = 1.0
        self._ratios: deque[float] = deque(maxlen=_SPEED_STEPS)

    def observe(self, seconds: float, expected: float, steps: int = 1) -> None:
        """Learn from `steps` steps that took `seconds` each. At a speed of 1 each would take `expected`."""
        if expected <= 0 or seconds <= 0:
            return
        ratio = seconds / expected
        self._ratios.extend([ratio] * min(steps, _SPEED_STEPS))
        usual = sorted(self._ratios)[len(self._ratios) // 2]
        if len(self._ratios) == _SPEED_STEPS and not 1 / _CALM < usual / self.factor < _CALM:
            self.factor = usual
        elif ratio > self.factor:
            self.factor = min(ratio, self.factor * _SPEED_RISE**steps)
        else:
            self.factor = max(ratio, self.factor / _SPEED_RISE**steps)
        self.factor **= (1 - 1 / _SPEED_LASTS) ** steps


class Misses:
    """Estimates E_new, the distinct non-resident experts that a batch will want, from demand and residency.

    If a share p of the latest tokens wanted an expert, a batch of b tokens wants it with probability 1 - (1 -
    p)^b. The probabilities are summed over a histogram of √p, so that the cost does not grow with the model.
    """

    _BINS = 64  # of √p; with more, refreshing takes longer and changes little
    _KEPT_SHARE = 0.8  # the part of a share that is left after 8 tokens, because experts change with the text

    def __init__(self, n: int) -> None:
        """Start without demand. n: the largest batch."""
        p = (np.arange(self._BINS) / (self._BINS - 1)) ** 2
        self._chance = 1 - (1 - p[:, None]) ** np.arange(1, n + 1)
        self._share: Float64Array | None = None
        self._demand: Int32Array | None = None
        self._knows = False  # True once a share of the past is known
        self._tokens = 0
        self._scale = 1.0
        self._guessed: Float64Array = np.zeros(n)  # E_new by the shares
        self._window: Float64Array = np.zeros(n)  # the mean E_new of the latest predicted windows
        self._windows: Float64Array = np.zeros(n)  # the weight of these, 0 to 1
        self.expected = np.zeros(n)
        """E_new of batches of 1 … n tokens, float64 [n]."""

    def add(self, demand: Int32Array, n_verified: int) -> None:
        """Add the demand of a step of n_verified tokens. demand: int32 [L, N], not kept."""
        if self._demand is None or self._share is None:
            self._demand, self._share = np.zeros(demand.shape, np.int32), np.zeros(demand.shape)
        self._demand += demand
        self._tokens += n_verified

    def calibrate(self, size: int, missed: float) -> None:
        """Correct the scale: a batch of `size` tokens had `missed` misses.

        Tokens close to each other want the same experts more often.
        """
        expected = float(self.expected[size - 1])
        if expected > 0:
            self._scale += 0.05 * self._scale * (min(max(missed / expected, 0.5), 2.0) - 1)

    def foresee(self, misses: Float64Array) -> None:
        """Take the misses of windows of 1 … T tokens that a draft predicted, float64 [T].

        From now on they hold for these sizes, as a mean over the latest drafts. Larger sizes grow from there
        as the shares say.
        """
        n = min(len(misses), len(self._window))
        self._window[:n] += _WINDOW * (misses[:n] - self._window[:n])
        self._windows[:n] += _WINDOW * (1 - self._windows[:n])
        self._combine()

    def _combine(self) -> None:
        """Compute `expected` of the predicted windows and of the shares."""
        n, guessed = int(np.count_nonzero(self._windows)), self._guessed
        result = guessed.copy()
        if n:
            result[:n] = self._window[:n] / self._windows[:n]
            result[n:] = result[n - 1] * (guessed[n:] / guessed[n - 1] if guessed[n - 1] > 0 else 1.0)
        self.expected = self._scale * np.maximum.accumulate(result)

    def refresh(self, resident: BoolArray) -> None:
        """Compute `expected` anew. resident: bool [L, N]."""
        if self._tokens == 0:
            return
        kept = self._KEPT_SHARE ** (self._tokens / 8) if self._knows else 0.0
        bins = self._renewed(resident, kept)
        self._tokens, self._knows = 0, True
        self._guessed = bins @ self._chance
        self._combine()

    def _renewed(self, resident: BoolArray, kept: float) -> Float64Array:
        """Move the shares by the new demand, and return a histogram of the absent experts, float64 [64].

        The bins are of the root of the share. kept: the part of the shares that is left.
        """
        assert self._demand is not None
        assert self._share is not None
        self._share *= kept
        self._share += (1 - kept) * np.minimum(self._demand / self._tokens, 1.0)
        self._demand[:] = 0
        bins = np.rint(np.sqrt(self._share[~resident]) * (self._BINS - 1)).astype(np.intp)
        return np.bincount(bins, minlength=self._BINS).astype(np.float64)

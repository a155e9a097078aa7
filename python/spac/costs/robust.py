"""Averages that follow measurements and resist outliers.

A start value may be wrong, or become wrong. Exponential averages over about `1 / SHARE` measurements correct
it. An interrupted measurement may be a hundred times too long. It counts for at most `_REACH` times the usual
value, which is the median of the latest measurements. If all of them are ten times longer, the usual value
follows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from statistics import median

SHARE = 0.02
"""The weight of the newest step in an average. About 50 steps count, so noise cancels out."""
LEAST = 1e-12
"""Seconds that are shorter than any time. They replace 0, because times are divided by."""
_WINDOW = 5  # latest steps, whose median is the usual value; two interrupted ones do not change it
_NEEDED = 3  # steps before a value is learned: the fewest whose median leaves out an interrupted one
_REACH = 2.0  # factor from the usual value up to which a step counts with its own time; longer: interrupted
_SURPRISE = 1.5  # factor between usual and learned values above which the machine has changed
_KEPT_IN_SURPRISE = 0.8  # weight of the learned sums after a step in that case: a third is left after five


class RobustFit:
    """Unit times u >= 0 of work that is measured in sums, seconds = u · amounts, learned step by step.

    The fit is the exponentially weighted least squares of the relative error. After each observation, all
    units are scaled together, then corrected one by one (a sweep of coordinate descent). Units whose amounts
    always vary together keep their proportion from the start.
    """

    def __init__(self, units: Sequence[float]) -> None:
        """Set the start values `units`, in seconds per amount."""
        self.units = [max(float(unit), LEAST) for unit in units]
        """The seconds per unit of every amount."""
        n = len(self.units)
        self._a = [[0.0] * n for _ in range(n)]
        self._b = [0.0] * n
        self._latest: deque[tuple[tuple[float, ...], float]] = deque(maxlen=_WINDOW)

    def predict(self, amounts: Sequence[float]) -> float:
        """Return the expected seconds for these amounts."""
        total = 0.0
        for unit, amount in zip(self.units, amounts, strict=True):
            total += unit * amount
        return total

    def observe(self, amounts: Sequence[float], seconds: float) -> None:
        """Learn from one measurement; one without any amount is ignored."""
        row = tuple(map(float, amounts))
        expected = self.predict(row)
        if expected <= 0 or seconds <= 0:
            return
        self._latest.append((row, seconds))
        if len(self._latest) < _NEEDED:
            return
        usual = expected * median([time / self.predict(each) for each, time in self._latest])
        off = max(1.0, seconds / usual / _REACH, usual / seconds / _REACH)
        kept = 1.0 - SHARE if 1 / _SURPRISE < usual / expected < _SURPRISE else _KEPT_IN_SURPRISE
        self._take(row, min(max(seconds, usual / _REACH), usual * _REACH), (off * usual) ** -2, kept)

    def _take(self, row: tuple[float, ...], seconds: float, weight: float, kept: float) -> None:
        a, b, units = self._a, self._b, self.units
        above = below = 0.0
        for i, sums in enumerate(a):
            weighted = weight * row[i]
            b[i] = kept * b[i] + weighted * seconds
            for j, amount in enumerate(row):
                sums[j] = kept * sums[j] + weighted * amount
                below += units[i] * sums[j] * units[j]
            above += units[i] * b[i]
        if below <= 0 or above <= 0:
            return
        units[:] = [unit * above / below for unit in units]
        for i, sums in enumerate(a):
            if sums[i] > 0:
                rest = 0.0
                for j, unit in enumerate(units):
                    rest += sums[j] * unit
                units[i] = max(units[i] + (b[i] - rest) / sums[i], LEAST)


class RobustTable:
    """Times by batch size, each averaged over the steps of that size.

    A size without measurements keeps its proportion to the measured sizes.
    """

    def __init__(self, times: Sequence[float]) -> None:
        """Set the start values, in seconds for 1, 2, … tokens."""
        self._start = [max(float(time), LEAST) for time in times]
        self._ratio = [1.0] * len(times)  # measured time divided by the start value
        self._seen = [0] * len(times)
        self._latest: list[deque[float]] = [deque(maxlen=_WINDOW) for _ in times]  # the latest ratios

    def __getitem__(self, n_tokens: int) -> float:
        """Return the seconds for `n_tokens`; beyond the table, they are proportional to its last entry."""
        size = len(self._start)
        i = min(max(n_tokens, 1), size) - 1
        ratio = self._ratio[i] if self._seen[i] >= _NEEDED else self._common()
        return self._start[i] * ratio * max(1.0, n_tokens / size)

    def _common(self) -> float:
        """Return the mean ratio of the measured sizes to their start values; 1 without any."""
        known = [ratio for ratio, seen in zip(self._ratio, self._seen, strict=True) if seen >= _NEEDED]
        return sum(known) / len(known) if known else 1.0

    def observe(self, n_tokens: int, seconds: float) -> None:
        """Learn from one measurement of a batch of `n_tokens`; one larger than the table is ignored."""
        i = n_tokens - 1
        if not 0 <= i < len(self._start) or seconds <= 0:
            return
        latest, ratio = self._latest[i], seconds / self._start[i]
        latest.append(ratio)
        self._seen[i] += 1
        if self._seen[i] < _NEEDED:
            return
        usual = median(latest)
        if self._seen[i] == _NEEDED or not 1 / _SURPRISE < usual / self._ratio[i] < _SURPRISE:
            self._ratio[i] = usual
            return
        share = max(SHARE, 1 / self._seen[i])
        self._ratio[i] += share * (min(max(ratio, usual / _REACH), usual * _REACH) - self._ratio[i])

    @property
    def times(self) -> tuple[float, ...]:
        """The seconds for 1, 2, … tokens."""
        return tuple(self[n + 1] for n in range(len(self._start)))

"""Averages that follow what is measured and survive what is not worth measuring.

A value may be wrong from the start, or become wrong: what is measured counts, by exponential averages over
about `1 / SHARE` measurements. An interrupted one may be a hundred times too long; it counts for no more than
`_REACH` times what the latest, by their median, show to be usual. When all of them are ten times too long,
that is the new usual.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spac import _core

SHARE = 0.02
"""Of the newest step in an average."""
_WINDOW = 5  # steps that say what is usual
_NEEDED = 3  # of them, before anything is believed
_REACH = 2.0  # how far from the usual, as a factor, a step may be and still count with its own time
_SURPRISE = 1.5  # how far off the usual may be, as a factor, before what was learned is forgotten sooner
_KEPT_IN_SURPRISE = 0.8
_LEAST = 1e-12  # seconds: below any time, above 0 for divisions


class RobustFit:
    """Unit times u >= 0 of work that is measured in sums: seconds = u · amounts, learned step by step.

    Exponentially weighted least squares of the relative error. After each observation, all units are scaled
    together, then corrected one by one (a sweep of coordinate descent): where amounts never vary apart, their
    units keep the proportion in which they began.
    """

    def __init__(self, units: Sequence[float], share: float = SHARE) -> None:
        """units: seconds per amount to start from."""
        self.units = [max(float(unit), _LEAST) for unit in units]
        """Seconds per unit of every amount."""
        n = len(self.units)
        self._kept = 1.0 - share
        self._a = [[0.0] * n for _ in range(n)]
        self._b = [0.0] * n
        self._latest: deque[tuple[tuple[float, ...], float]] = deque(maxlen=_WINDOW)

    def predict(self, amounts: Sequence[float]) -> float:
        """Seconds."""
        total = 0.0
        for unit, amount in zip(self.units, amounts, strict=True):
            total += unit * amount
        return total

    def observe(self, amounts: Sequence[float], seconds: float) -> None:
        """One measurement; without any amount it says nothing."""
        row = tuple(map(float, amounts))
        expected = self.predict(row)
        if expected <= 0 or seconds <= 0:
            return
        self._latest.append((row, seconds))
        if len(self._latest) < _NEEDED:
            return
        usual = expected * median([time / self.predict(each) for each, time in self._latest])
        off = max(1.0, seconds / usual / _REACH, usual / seconds / _REACH)
        kept = self._kept if 1 / _SURPRISE < usual / expected < _SURPRISE else _KEPT_IN_SURPRISE
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
                units[i] = max(units[i] + (b[i] - rest) / sums[i], _LEAST)


def fast_fit(units: Sequence[float], share: float = SHARE) -> _core.RobustFit:
    """A `RobustFit` in C++ (csrc/core/robust_fit.h)."""
    from spac import _core  # here, for options are read before the library is loaded

    options = (_REACH, _SURPRISE, _KEPT_IN_SURPRISE, _LEAST)
    return _core.RobustFit(units, 1.0 - share, (_WINDOW, _NEEDED), options)


class RobustTable:
    """Times by batch size, each averaged over the steps of that size.

    A size that did not come yet keeps its proportion to those that did.
    """

    def __init__(self, times: Sequence[float], share: float = SHARE) -> None:
        """times: of 1, 2, … tokens, to start from."""
        self._start = [max(float(time), _LEAST) for time in times]
        self._share = share
        self._ratio = [1.0] * len(times)  # to the start
        self._seen = [0] * len(times)
        self._latest: list[deque[float]] = [deque(maxlen=_WINDOW) for _ in times]  # ratios, too

    def __getitem__(self, n_tokens: int) -> float:
        """Seconds for `n_tokens`; beyond the table in proportion to its last entry."""
        size = len(self._start)
        i = min(max(n_tokens, 1), size) - 1
        ratio = self._ratio[i] if self._seen[i] >= _NEEDED else self._common()
        return self._start[i] * ratio * max(1.0, n_tokens / size)

    def _common(self) -> float:
        """What the sizes that were seen make of their start, in the mean."""
        known = [ratio for ratio, seen in zip(self._ratio, self._seen, strict=True) if seen >= _NEEDED]
        return sum(known) / len(known) if known else 1.0

    def observe(self, n_tokens: int, seconds: float) -> None:
        """One measurement of a batch of `n_tokens`; one larger than the table is not kept."""
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
        share = max(self._share, 1 / self._seen[i])
        self._ratio[i] += share * (min(max(ratio, usual / _REACH), usual * _REACH) - self._ratio[i])

    @property
    def times(self) -> tuple[float, ...]:
        """Seconds of 1, 2, … tokens."""
        return tuple(self[n + 1] for n in range(len(self._start)))

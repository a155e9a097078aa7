"""Conditional acceptance by position, learnt from what verifications accept."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from spac.governor.model import FloatArray

if TYPE_CHECKING:
    from spac import _core

_STEPS = 48  # over which an observation loses two thirds of its weight
_TRIALS = 256  # the same, of the long memory, in trials of a position
_PRIOR = 3.0  # trials that a prior counts for
_RECENT = 8  # steps of the window that is compared with what was expected
_SURPRISE = 3.0  # standard deviations at which the old evidence no longer holds
_FORGET = 8.0


class Rate:
    """Success rates of positions 1 … K, each given success at all before it.

    Three memories, each the next one's prior where it has seen little: the position's last `_STEPS` steps,
    its last `_TRIALS` trials, and all positions pooled. Time without a trial ages the first only, so that a
    rate nobody has looked at grows uncertain but does not drift.
    """

    def __init__(self, n: int, prior: float) -> None:
        self._n = n
        self._recent = [0.0] * n
        self._recent_trials = [0.0] * n
        self._long = [0.0] * n
        self._long_trials = [0.0] * n
        self._pool, self._pool_trials = _PRIOR * prior, _PRIOR
        self._weight = 1.0  # of an observation made now; grows instead of all sums shrinking
        self._growth = 1.0 / (1.0 - 1.0 / _STEPS)
        self._expected = [prior] * n
        self._certain = prior == 1.0
        self._ever_failed = False
        self._off = self._variance = 0.0  # of the last steps against what was expected of them

    def age(self, steps: int = 1) -> None:
        """Steps pass without a trial."""
        self._weight *= self._growth**steps
        if self._weight > 1e100:
            self._rescale()

    def observe(self, n_success: int, failed: bool) -> bool:
        """A step in which positions 1 … n_success succeeded, and with `failed` the next one did not.

        True when this and the last steps are no longer explained by the rates of before: they were forgotten.
        """
        self.age()
        if failed:
            self._ever_failed = True
        keep, expected = 1 - 1 / _TRIALS, self._expected
        for j in range(n_success + failed):
            success = 1.0 if j < n_success else 0.0
            p = expected[j]
            self._off += success - p
            self._variance += p * (1 - p)
            self._recent[j] += success * self._weight
            self._recent_trials[j] += self._weight
            self._long[j] = self._long[j] * keep + success
            self._long_trials[j] = self._long_trials[j] * keep + 1
            self._pool = self._pool * keep + success
            self._pool_trials = self._pool_trials * keep + 1
        surprised = self._off * self._off > _SURPRISE**2 * (self._variance + 0.25)
        if surprised:
            self._weight *= _FORGET
            self._off = self._variance = 0.0
        else:
            self._off *= 1 - 1 / _RECENT
            self._variance *= 1 - 1 / _RECENT
        return surprised

    def estimate(self) -> tuple[FloatArray, FloatArray]:
        """float64 [K] each: the rates, and the trials behind each of them, the prior's included."""
        if self._certain and not self._ever_failed:
            return np.ones(self._n), np.full(self._n, _PRIOR)
        pool, weight = _PRIOR * self._pool / self._pool_trials, self._weight
        rates, trials = [], []
        for recent, seen, long, n in zip(
            self._recent, self._recent_trials, self._long, self._long_trials, strict=True
        ):
            prior = (long + pool) / (n + _PRIOR)
            count = seen / weight + _PRIOR
            rates.append((recent / weight + _PRIOR * prior) / count)
            trials.append(count)
        self._expected = rates
        return np.array(rates), np.array(trials)

    def _rescale(self) -> None:
        scale = 1 / self._weight
        self._recent = [value * scale for value in self._recent]
        self._recent_trials = [value * scale for value in self._recent_trials]
        self._weight = 1.0


def fast_rate(n: int, prior: float) -> _core.Acceptance:
    """A `Rate` in C++ (csrc/core/acceptance.h)."""
    from spac import _core  # here, for options are read before the library is loaded

    return _core.Acceptance(n, prior, (_STEPS, _TRIALS, _PRIOR, _RECENT, _SURPRISE, _FORGET))


def optimistic(rates: FloatArray, trials: FloatArray, hope: FloatArray) -> FloatArray:
    """float64 [K]: rates that may yet turn out true: one standard error up, and `hope` (0 for fresh
    evidence, to 1 for old) of the way to certainty."""
    error = np.sqrt((rates * (1 - rates) + 0.02) / trials)
    reach = np.minimum(rates + error, 1.0)
    return np.asarray(reach + (1.0 - reach) * hope)

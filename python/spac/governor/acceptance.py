"""The conditional acceptance of drafted tokens by position, learned from verifications."""

from __future__ import annotations

import numpy as np

from spac.machine.arrays import Float64Array

_STEPS = 48  # steps over which an observation loses two thirds of its weight, because the text changes
_TRIALS = 256  # trials of a position over which the long memory loses as much, for positions seldom tried
_PRIOR = 3.0  # weight of a prior, in trials; a few trials of the position itself outweigh it
_RECENT = 8  # steps of the window that is compared with expectations, so that a change shows soon
_SURPRISE = 3.0  # standard deviations at which the old evidence no longer holds; chance seldom reaches it
_FORGET = 8.0  # factor by which the old evidence then loses weight


class Rate:
    """Estimates success rates of positions 1 … K, each given success at all earlier positions.

    It has three memories: the position's last `_STEPS` steps, its last `_TRIALS` trials, and all positions
    pooled. Each is the prior of the one before it, where that one has seen little. Time without a trial ages
    the first memory only. So the rate of a position without trials grows uncertain but does not drift.
    """

    def __init__(self, n: int, prior: float) -> None:
        self._n = n
        self._recent = [0.0] * n
        self._recent_trials = [0.0] * n
        self._long = [0.0] * n
        self._long_trials = [0.0] * n
        self._pool, self._pool_trials = _PRIOR * prior, _PRIOR
        self._weight = 1.0  # weight of an observation made now; it grows, so that the sums need not shrink
        self._growth = 1.0 / (1.0 - 1.0 / _STEPS)
        self._expected = [prior] * n
        self._certain = prior == 1.0
        self._ever_failed = False
        # Over the last steps: successes less expected ones, and their variance.
        self._off = self._variance = 0.0

    def age(self, steps: int = 1) -> None:
        """Let `steps` steps pass without a trial."""
        self._weight *= self._growth**steps
        if self._weight > 1e100:
            self._rescale()

    def observe(self, n_success: int, failed: bool) -> bool:
        """Learn from a step. Positions 1 … n_success succeeded; if `failed`, the next one failed.

        Return True if the earlier rates no longer explain this and the last steps. Their evidence is then
        discounted.
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

    def estimate(self) -> tuple[Float64Array, Float64Array]:
        """Return the rates, and the number of trials behind each including the prior's; float64 [K] each."""
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


def optimistic(rates: Float64Array, trials: Float64Array, hope: Float64Array) -> Float64Array:
    """Return rates that may yet turn out true, float64 [K].

    They lie one standard error up, and then `hope` of the way to certainty. hope: 0 for fresh evidence, to 1
    for old.
    """
    error = np.sqrt((rates * (1 - rates) + 0.02) / trials)
    reach = np.minimum(rates + error, 1.0)
    return np.asarray(reach + (1.0 - reach) * hope)

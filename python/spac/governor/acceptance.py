"""The conditional acceptance of drafted tokens by position, learned from verifications."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from spac.machine.arrays import BoolArray, Float64Array, Int32Array

_STEPS = 48  # steps over which an observation loses two thirds of its weight, because the text changes
_TRIALS = 256  # trials of a position over which the long memory loses as much, for positions seldom tried
_PRIOR = 3.0  # weight of a prior, in trials; a few trials of the position itself outweigh it
_SHARED = 6.0  # weight of all sequences' rates for one of them, in trials
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


def rates_of(agreed: BoolArray, longest: int) -> Rate:
    """Return the acceptance that drafts of `longest` tokens would have shown on a text.

    agreed: bool [T], True for each token that the draft would have proposed in its place.
    """
    rates, places = Rate(longest, 0.7), np.flatnonzero(~agreed)
    first = 0
    while first < len(agreed):
        end = int(places[places >= first][0]) if (places >= first).any() else len(agreed)
        n = min(end - first, longest)
        rates.observe(n, n < longest and end < len(agreed))
        first += n + 1
    return rates


class SequenceRates:
    """Estimates the rates of several sequences: acceptance, and going on to the next position.

    The rates of all sequences together are the prior of each.
    """

    def __init__(self, longest: int, n_places: int) -> None:
        """Start without evidence. longest: K. n_places: the most sequences."""
        self.all_accept, self.all_go_on = Rate(longest, 0.7), Rate(longest, 1.0)
        self._rows: dict[int, int] = {}
        self._n = n_places
        # Successes and trials of (acceptance, going on), float64 [2, sequences, K].
        self._success = np.zeros((2, n_places, longest))
        self._trials = np.zeros_like(self._success)

    def resume(self, accept: Rate) -> None:
        """Go on after a pause, in which a text showed the acceptance of all sequences."""
        self.all_accept = accept
        self._rows.clear()

    def rows(self, ids: Sequence[int]) -> list[int]:
        """Return the rows of sequences. A new one takes the row of one that has left."""
        for new in [each for each in ids if each not in self._rows]:
            wanted = set(ids)
            free = set(range(self._n)) - set(self._rows.values())
            row = free.pop() if free else next(self._rows.pop(i) for i in list(self._rows) if i not in wanted)
            self._rows[new] = row
            self._success[:, row] = self._trials[:, row] = 0.0
        return [self._rows[each] for each in ids]

    def observe(
        self, rows: Sequence[int], asked: Int32Array, drafted: Int32Array, accepted: Int32Array
    ) -> bool:
        """Learn from drafts, int [S] each. Return True if the earlier rates no longer explain them."""
        surprised = False
        for k, n, good in zip(asked.tolist(), drafted.tolist(), accepted.tolist(), strict=True):
            surprised |= self.all_go_on.observe(n, n < k)
            surprised |= n > 0 and self.all_accept.observe(good, good < n)
        places = np.arange(self._success.shape[2])
        success = np.stack((accepted, drafted))[:, :, None]
        tried = np.stack((np.minimum(accepted + 1, drafted), np.minimum(drafted + 1, asked)))[:, :, None]
        self._success[:, rows] = self._success[:, rows] * (1 - 1 / _STEPS) + (places < success)
        self._trials[:, rows] = self._trials[:, rows] * (1 - 1 / _STEPS) + (places < tried)
        return surprised

    def estimate(self, rows: Sequence[int]) -> tuple[Float64Array, Float64Array, Float64Array]:
        """Return acceptance, going on and the trials behind the acceptance, float64 [S, K] each."""
        accept, trials = self.all_accept.estimate()
        prior = np.stack((accept, self.all_go_on.estimate()[0]))[:, None, :]
        weight = self._trials[:, rows]
        rates = (self._success[:, rows] + _SHARED * prior) / (weight + _SHARED)
        return rates[0], rates[1], np.minimum(trials, _SHARED) + weight[0]


def optimistic(rates: Float64Array, trials: Float64Array, hope: Float64Array) -> Float64Array:
    """Return rates that may yet turn out true, float64 [K].

    They lie one standard error up, and then `hope` of the way to certainty. hope: 0 for fresh evidence, to 1
    for old.
    """
    error = np.sqrt((rates * (1 - rates) + 0.02) / trials)
    reach = np.minimum(rates + error, 1.0)
    return np.asarray(reach + (1.0 - reach) * hope)

"""The uses that a copy brings per gain in probability, learned while text is generated.

A copy replaces the least probable resident experts by the most probable absent ones. How long their order
lasts depends on the text: where routes change with every token, a gain of g brings about 1.5 g uses, and
where they drift slowly, many times as much. So every few steps the best absent and the worst resident experts
are noted, and their uses in the next steps are counted, whatever the slots hold by then:

    uses = Σ (uses of the absent - uses of the resident) / Σ (p of the absent - p of the resident)

The estimate is one standard error below that, because a copy too many costs more than one too few.
"""

from __future__ import annotations

import numpy as np

from spac.machine.arrays import BoolArray, Float64Array, Int32Array

STEPS = 8
"""The steps over which uses are counted, and between two samples."""
_PAIRS = 32  # the most experts of each side in a sample
_LEAST_GAP = 0.02  # mean gap of a sample, below which it tells nothing
_KEEP = 1 - 1 / 32  # the part of the sums that a sample leaves
_PRIOR = 40.0  # weight of the first guess, in gaps


class Reuse:
    """Estimates the uses that a gain of 1 in the probability of the next step's use brings."""

    def __init__(self, guess: float, most: float) -> None:
        """Start with a guess, which is the least estimate too. most: the largest estimate."""
        self.uses = self._guess = guess
        self._most = most
        self._brought = self._gaps = self._squares = 0.0  # sums; the squares are of what the ratio leaves
        self._now = self._gap = 0.0  # of the running sample: uses so far, and the gap
        self._left = 0
        self._absent = self._resident = np.zeros(0, np.intp)

    def observe(self, demand: Int32Array, resident: BoolArray, probability: Float64Array) -> None:
        """Learn from a step.

        demand: int32 [L, N]. resident: bool [L, N], the experts in slots. probability: float64 [L, N], as it
        was predicted for the step.
        """
        if not self._left:
            self._sample(resident, probability)
        if not self._left:
            return
        self._now += float(
            np.count_nonzero(demand.flat[self._absent]) - np.count_nonzero(demand.flat[self._resident])
        )
        self._left -= 1
        if not self._left:
            self._brought = self._brought * _KEEP + self._now
            self._gaps = self._gaps * _KEEP + self._gap
            self._squares = self._squares * _KEEP + (self._now - self._mean * self._gap) ** 2
            self._estimate()

    def state(self) -> Float64Array:
        """Return the sums over samples, float64 [3]. The running sample is not in them."""
        return np.array([self._brought, self._gaps, self._squares])

    def restore(self, state: Float64Array) -> None:
        """Continue from the result of `state`, clipped to its valid range."""
        sums = np.clip(np.nan_to_num(state), (-1e9, 0.0, 0.0), 1e9)
        self._brought, self._gaps, self._squares = sums.tolist()
        self._left = 0
        self._estimate()

    @property
    def _mean(self) -> float:
        return (self._brought + _PRIOR * self._guess) / (self._gaps + _PRIOR)

    def _estimate(self) -> None:
        error = self._squares**0.5 / (self._gaps + _PRIOR)
        self.uses = min(max(self._mean - error, self._guess), self._most)

    def _sample(self, resident: BoolArray, probability: Float64Array) -> None:
        n = min(_PAIRS, int(resident.sum()), int(resident.size - resident.sum()))
        if n == 0:
            return
        absent = np.argpartition(np.where(resident, -1.0, probability), -n, axis=None)[-n:]
        kept = np.argpartition(np.where(resident, probability, 2.0), n - 1, axis=None)[:n]
        gap = float(probability.flat[absent].sum() - probability.flat[kept].sum())
        if gap < _LEAST_GAP * n:
            return
        self._now, self._gap = 0.0, gap
        self._absent, self._resident, self._left = absent, kept, STEPS

"""The confidence below which a draft stops, chosen by the acceptance that each confidence had.

A draft model knows how probable it holds a token: its confidence q. A draft stops before the first token with
q < t, and t is one of 0, 0.1, …, 0.9. What a threshold is worth follows from a chain over tenths of q. The
chain has the distribution of the first token's q, and that of the next one behind each. The latter is kept
apart for drafts that are still right and for those that failed before. The chain also has the chance a(q)
that a token is accepted. Every draft shows all of this, whatever its threshold is, except for tokens behind a
stop. So now and then a draft goes on below the threshold.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from spac.machine.arrays import Float64Array

_BINS = 10
EVERY = 16
"""Drafts between two choices."""
LOWER = 32
"""Drafts between two that go on below the threshold. Every eighth of these goes on to its end."""
_KEEP = 1 - 1 / 96  # the part of the chain's counts that a draft leaves, because the text changes
_KEEP_HITS = 1 - 1 / 256  # the part of a confidence's acceptance that a trial of it leaves
_PRIOR = 4.0  # weight of priors, in observations


class Confidences:
    """Learns the acceptance by confidence, and foretells drafts for every threshold."""

    thresholds = np.arange(_BINS) / _BINS

    def __init__(self, longest: int) -> None:
        """Start without observations. longest: the number K of tokens of the longest draft."""
        self._longest = longest
        self._hits, self._trials = np.zeros(_BINS), np.zeros(_BINS)
        self._first = np.zeros(_BINS)
        self._next = np.zeros((2, _BINS, _BINS))  # of drafts that failed before, and of those that did not
        self.n_drafts = 0
        """The number of drafts observed."""

    def observe(self, confidences: Sequence[float], n_drafted: int, n_accepted: int) -> None:
        """Learn from a draft.

        confidences: those of the drafted tokens, and of the one before which the draft stopped, if it did.
        """
        bins = [min(int(q * _BINS), _BINS - 1) for q in confidences]
        if not bins:
            return
        self.n_drafts += 1
        self._first *= _KEEP
        self._next *= _KEEP
        self._first[bins[0]] += 1
        for j in range(1, len(bins)):
            self._next[int(j <= n_accepted), bins[j - 1], bins[j]] += 1
        for j in range(min(n_accepted + 1, n_drafted)):
            b = bins[j]
            self._hits[b] = self._hits[b] * _KEEP_HITS + (j < n_accepted)
            self._trials[b] = self._trials[b] * _KEEP_HITS + 1

    def rates(self) -> tuple[Float64Array, Float64Array]:
        """Return p and c of `governor.model` for every threshold, float64 [_BINS, K] each.

        Their product is exact. p may exceed 1, where drafts that failed stop more often than others.
        """
        middle = (np.arange(_BINS) + 0.5) / _BINS
        accept = (self._hits + _PRIOR * middle) / (self._trials + _PRIOR)
        first = (self._first + 1 / _BINS) / (self._first.sum() + 1)
        usual = self._next[1].sum(0) + _PRIOR * first
        behind = _rows(self._next[1], usual)
        failed = _rows(self._next[0], self._next[0].sum(0) + _PRIOR * usual / usual.sum())
        kept = np.arange(_BINS) >= np.arange(_BINS)[:, None]
        right, wrong = first * kept, np.zeros((_BINS, _BINS))
        drafted, accepted = np.ones((2, _BINS, self._longest + 1))
        for j in range(1, self._longest + 1):
            hits = right * accept
            drafted[:, j], accepted[:, j] = (right + wrong).sum(1), hits.sum(1)
            wrong = (wrong + right - hits) @ failed * kept
            right = hits @ behind * kept
        go_on = drafted[:, 1:] / np.maximum(drafted[:, :-1], 1e-12)
        both = accepted[:, 1:] / np.maximum(accepted[:, :-1], 1e-12)
        return both / np.maximum(go_on, 1e-12), go_on

    def lower(self, chosen: int) -> float:
        """Return the threshold of the next draft: the chosen one, or now and then a lower one."""
        if self.n_drafts % LOWER != LOWER - 1:
            return float(self.thresholds[chosen])
        return 0.0 if self.n_drafts // LOWER % 8 == 0 else float(self.thresholds[max(0, chosen - 2)])

    def cut(self, chosen: int, confidences: Sequence[float], n_drafted: int) -> int:
        """Return how many of the drafted tokens the chosen threshold would have left."""
        t = self.thresholds[chosen]
        return next((j for j in range(n_drafted) if confidences[j] < t), n_drafted)


def _rows(counts: Float64Array, usual: Float64Array) -> Float64Array:
    """Return the distributions of the rows of `counts`, drawn to `usual` where they have seen little."""
    rows = counts + _PRIOR * usual / usual.sum()
    return np.asarray(rows / rows.sum(1, keepdims=True))

"""Make predictions of routes as good as those of a router that gets an earlier layer's input.

Every expert of a layer gets a score for every token: noise, plus `edge` if the token is routed to it. The
best k experts, as many as the token uses, are the prediction. `edge` is chosen so that the recall, the share
of the token's experts among them, has the wanted value. With k predicted of k, precision is the same.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from spac.machine.arrays import BoolArray, Float32Array, Int32Array
from spac.scheduler.replay import Demand

_NO_ERROR = 40.0  # an edge that noise never makes up for
_BINS = 64


@dataclass(frozen=True)
class Predicted:
    """The predictions for every step."""

    chosen: BoolArray
    """bool [T, L, N]: the expert is among the best k of some token."""
    probability: Float32Array
    """float32 [T, L, N]: the probability that some token uses the expert, by its scores."""

    def agreement(self, counts: Int32Array) -> tuple[float, float]:
        """Return recall and precision, of distinct experts of a step. counts: int32 [T, L, N]."""
        right = float((self.chosen & (counts > 0)).sum())
        return right / max(1, (counts > 0).sum()), right / max(1, self.chosen.sum())


def predict(demand: Demand, recall: float, seed: int = 1) -> Predicted:
    """Return predictions of a recording with routes. recall: 0 to 1, of a token's experts."""
    if demand.routes is None:
        raise ValueError("a recording without routes cannot be predicted: record it anew")
    taken = _taken(demand.routes, demand.counts.shape[2])
    rng = np.random.default_rng(seed)
    k = demand.routes.shape[3]
    noise = rng.standard_normal(taken.shape, np.float32)
    edge = _edge_for(noise[:: max(1, len(noise) // 200)], taken[:: max(1, len(noise) // 200)], k, recall)
    score = noise + np.float32(edge) * taken
    chosen = _best(score, k)
    probability = _calibrated(score, taken)
    n_step, n_layer, n_token = demand.routes.shape[:3]
    shape = (n_step, n_token, n_layer, -1)
    absent = (demand.routes[..., 0] < 0).transpose(0, 2, 1)
    chosen, probability = chosen.reshape(shape), probability.reshape(shape)
    chosen[absent], probability[absent] = False, 0.0
    some = 1 - np.prod(1 - probability, axis=1, dtype=np.float32)
    # The tokens of a step are alike, so their scores are not independent.
    return Predicted(chosen.any(1), some if n_token == 1 else _calibrated(some, demand.counts > 0))


def _taken(routes: Int32Array, n_expert: int) -> BoolArray:
    """Return bool [tokens, L, N], in the order of the text: the token is routed to the expert."""
    n_step, n_layer, n_token, _ = routes.shape
    flat = routes.transpose(0, 2, 1, 3).reshape(n_step * n_token, n_layer, -1)
    taken = np.zeros((*flat.shape[:2], n_expert + 1), np.bool_)
    np.put_along_axis(taken, np.where(flat < 0, n_expert, flat), True, axis=2)
    return taken[..., :n_expert]


def _best(score: Float32Array, k: int) -> BoolArray:
    """Return bool of the same shape: the k highest of the last axis."""
    best = np.argpartition(-score, k - 1, axis=-1)[..., :k]
    found = np.zeros(score.shape, np.bool_)
    np.put_along_axis(found, best, True, axis=-1)
    return found


def _edge_for(noise: Float32Array, taken: BoolArray, k: int, recall: float) -> float:
    if recall >= 1:
        return _NO_ERROR
    low, high = -4.0, _NO_ERROR
    for _ in range(24):
        edge = (low + high) / 2
        right = (_best(noise + np.float32(edge) * taken, k) & taken).sum() / taken.sum()
        low, high = (edge, high) if right < recall else (low, edge)
    return (low + high) / 2


def _calibrated(score: Float32Array, right: BoolArray) -> Float32Array:
    """Return float32 of the same shape: how often a score like this one was right.

    The result comes from a table over the quantiles of right scores, which a learner that watches its
    predictions would learn. The function sees the score alone, because nothing of the predicted routes may
    leak into it.
    """
    edges = np.unique(np.quantile(score[right], np.linspace(0, 1, _BINS)) if right.any() else score[:0])
    bins = np.searchsorted(edges, score, side="right")
    total = np.bincount(bins.ravel(), minlength=len(edges) + 1)
    hits = np.bincount(bins.ravel(), weights=right.ravel(), minlength=len(edges) + 1)
    return np.asarray((hits / np.maximum(total, 1))[bins], np.float32)

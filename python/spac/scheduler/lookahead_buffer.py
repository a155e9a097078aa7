"""MoE-SpeQ's Expert Lookahead Buffer (Section 3.3.1), and measures of how often its predictions come true.

ELB[i][j] (Equation 6) holds the experts of layer j that token i of the coming verification is predicted to
want, each with a confidence. The experts are those that the draft's routers chose.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from spac.machine.arrays import BoolArray, Float32Array, Float64Array, Int32Array

if TYPE_CHECKING:
    from spac.scheduler.base import View


def predicted_uses(routes: Int32Array, n_expert: int) -> Int32Array:
    """Return how many tokens are predicted to use each expert, int32 [L, N].

    routes: int32 [L, T, U], -1 where there is no expert. A token names an expert once.
    """
    n_layer = len(routes)
    layer, _, _ = np.nonzero(routes >= 0)
    places = layer * n_expert + routes[routes >= 0]
    return np.bincount(places, minlength=n_layer * n_expert).reshape(n_layer, n_expert).astype(np.int32)


@dataclass(frozen=True)
class LookaheadBuffer:
    """The predicted experts of the tokens of a draft, with their confidences (Equation 6)."""

    ids: Int32Array
    """The experts, int32 [L, T, U], -1 where there is none (`View.draft_routes`)."""
    confidence: Float32Array
    """Their confidences, float32 [L, T, U], 0 where they are not known (`View.draft_shares`)."""

    @classmethod
    def of(cls, view: View) -> LookaheadBuffer | None:
        """Return a copy of what the view predicts; None if it predicts nothing."""
        if view.draft_routes is None or not view.draft_routes.size:
            return None
        shares = view.draft_shares
        if shares is None:
            shares = np.zeros(view.draft_routes.shape, np.float32)
        return cls(view.draft_routes.copy(), shares.copy())

    def expected_uses(self, n_expert: int, chance: Float64Array) -> Float64Array:
        """Return the expected number of tokens that use each expert, float64 [L, N].

        chance: the probability that a prediction comes true, by bin of its confidence (`bins`), float64 [B].
        """
        here = self.ids >= 0
        places = (np.arange(len(self.ids))[:, None, None] * n_expert + self.ids)[here]
        weights = chance[self.bins(len(chance))[here]]
        uses = np.bincount(places, weights, len(self.ids) * n_expert)
        return np.asarray(uses.reshape(-1, n_expert), np.float64)

    def bins(self, n: int) -> Int32Array:
        """Return the bin of every confidence, int32 [L, T, U]. Bins 0 … n - 1 divide 0 … 1 evenly."""
        return np.asarray(np.minimum(self.confidence * n, n - 1).astype(np.int32))

    def misses(self, resident: BoolArray) -> Float64Array:
        """Return the distinct experts of the first 1 … T tokens that are not resident, float64 [T].

        resident: bool [L, N].
        """
        n_layer, n_token, _ = self.ids.shape
        first = np.full((n_layer, resident.shape[1] + 1), n_token)  # the last column takes what is no expert
        layer = np.arange(n_layer)[:, None]
        for token in range(n_token - 1, -1, -1):
            first[layer, self.ids[:, token]] = token
        absent = first[:, :-1][~resident]
        return np.bincount(absent[absent < n_token], minlength=n_token).cumsum().astype(np.float64)


@dataclass(frozen=True)
class Fidelity:
    """A comparison of predicted and real routes of the same tokens, by layer."""

    tokens: int
    """The number of tokens with predicted routes."""
    same: Float64Array
    """The share of their real experts that was predicted, float64 [L]: recall and precision of tokens."""
    exact: Float64Array
    """The share of tokens all of whose experts were predicted, float64 [L].

    See hard and soft matches, Figure 6.
    """
    recall: Float64Array
    """The share of the verifications' distinct experts that was predicted, float64 [L]. All tokens count."""
    precision: Float64Array
    """The share of the distinct predicted experts that the verifications used, float64 [L]."""

    @classmethod
    def of(cls, predicted: Int32Array, real: Int32Array) -> Fidelity:
        """Return the comparison of `predicted` with `real`.

        Both are int32 [steps, L, tokens, U], -1 where there is no expert. Tokens stand in the order in which
        they are verified.
        """
        n_expert = int(max(predicted.max(initial=0), real.max(initial=0))) + 1
        expected, used = _sets(predicted, n_expert), _sets(real, n_expert)
        n_token = min(expected.shape[2], used.shape[2])
        of_step = expected.any(axis=2), used.any(axis=2)
        both = (of_step[0] & of_step[1]).sum(axis=(0, 2))
        expected, used = expected[:, :, :n_token], used[:, :, :n_token]
        known: BoolArray = np.logical_and(expected.any(axis=3), used.any(axis=3))
        hits = (expected & used).sum(axis=3)
        wanted = used.sum(axis=3)
        return cls(
            tokens=int(known[:, 0].sum()),
            same=(hits * known).sum(axis=(0, 2)) / np.maximum(1, (wanted * known).sum(axis=(0, 2))),
            exact=(known * (hits == wanted)).sum(axis=(0, 2)) / np.maximum(1, known.sum(axis=(0, 2))),
            recall=both / np.maximum(1, of_step[1].sum(axis=(0, 2))),
            precision=both / np.maximum(1, of_step[0].sum(axis=(0, 2))),
        )


def _sets(routes: Int32Array, n_expert: int) -> BoolArray:
    """Return the experts that each token uses, bool [steps, L, tokens, N]."""
    found = np.zeros((*routes.shape[:3], n_expert), np.bool_)
    step, layer, token, place = np.nonzero(routes >= 0)
    found[step, layer, token, routes[step, layer, token, place]] = True
    return found

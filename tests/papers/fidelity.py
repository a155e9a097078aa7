"""A comparison of predicted routes with real ones."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from spac.machine.arrays import BoolArray, Float64Array, Int32Array


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

"""MoE-SpeQ's Expert Lookahead Buffer (Section 3.3.1), and how far what it foretells comes true.

ELB[i][j] (Equation 6) holds what token i of the coming verification is predicted to want of layer j. Its
entries are `View.draft_routes`, int32 [L, T, U]: the experts that the draft's routers chose.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from spac.scheduler.base import BoolArray, IntArray

FloatArray = npt.NDArray[np.float64]


def foretold_uses(routes: IntArray, n_expert: int) -> IntArray:
    """int32 [L, N]: by how many tokens each expert is foretold to be used.

    routes: int32 [L, T, U], -1 where there is none; a token names an expert once.
    """
    n_layer = len(routes)
    layer, _, _ = np.nonzero(routes >= 0)
    places = layer * n_expert + routes[routes >= 0]
    return np.bincount(places, minlength=n_layer * n_expert).reshape(n_layer, n_expert).astype(np.int32)


@dataclass(frozen=True)
class Fidelity:
    """Foretold and real routes of the same tokens, by layer."""

    tokens: int  # that were foretold
    same: FloatArray  # [L] share of their real experts that were foretold: recall and precision of tokens
    exact: FloatArray  # [L] share of them all of whose experts were (hard and soft matches, Figure 6)
    recall: FloatArray  # [L] distinct experts of the verifications that were foretold; all their tokens count
    precision: FloatArray  # [L] distinct foretold experts that the verifications used

    @classmethod
    def of(cls, foretold: IntArray, real: IntArray) -> Fidelity:
        """foretold, real: int32 [steps, L, tokens, U], -1 where there is none; tokens in the order in which
        they are verified."""
        n_expert = int(max(foretold.max(initial=0), real.max(initial=0))) + 1
        told, used = _sets(foretold, n_expert), _sets(real, n_expert)
        n_token = min(told.shape[2], used.shape[2])
        of_step = told.any(axis=2), used.any(axis=2)
        both = (of_step[0] & of_step[1]).sum(axis=(0, 2))
        told, used = told[:, :, :n_token], used[:, :, :n_token]
        known: BoolArray = np.logical_and(told.any(axis=3), used.any(axis=3))
        hits = (told & used).sum(axis=3)
        wanted = used.sum(axis=3)
        return cls(
            tokens=int(known[:, 0].sum()),
            same=(hits * known).sum(axis=(0, 2)) / np.maximum(1, (wanted * known).sum(axis=(0, 2))),
            exact=(known * (hits == wanted)).sum(axis=(0, 2)) / np.maximum(1, known.sum(axis=(0, 2))),
            recall=both / np.maximum(1, of_step[1].sum(axis=(0, 2))),
            precision=both / np.maximum(1, of_step[0].sum(axis=(0, 2))),
        )


def _sets(routes: IntArray, n_expert: int) -> BoolArray:
    """bool [steps, L, tokens, N]."""
    found = np.zeros((*routes.shape[:3], n_expert), np.bool_)
    step, layer, token, place = np.nonzero(routes >= 0)
    found[step, layer, token, routes[step, layer, token, place]] = True
    return found

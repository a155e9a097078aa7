"""Measures of MoE-SpeQ's Expert Lookahead Buffer (Section 3.3.1): what a draft's tokens are predicted to use.

ELB[i][j] (Equation 6) holds the experts of layer j that token i of the coming verification is predicted to
want. They are `View.draft_routes`: what routers chose for the drafted tokens.
"""

from __future__ import annotations

import numpy as np

from spac.machine.arrays import BoolArray, Float64Array, Int32Array


def predicted_uses(routes: Int32Array, n_expert: int) -> Int32Array:
    """Return how many tokens are predicted to use each expert, int32 [L, N].

    routes: int32 [L, T, U], -1 where there is no expert. A token names an expert once.
    """
    n_layer = len(routes)
    layer, _, _ = np.nonzero(routes >= 0)
    places = layer * n_expert + routes[routes >= 0]
    return np.bincount(places, minlength=n_layer * n_expert).reshape(n_layer, n_expert).astype(np.int32)


def window_misses(routes: Int32Array, resident: BoolArray) -> Float64Array:
    """Return the distinct experts of the first 1 … T tokens that are not resident, float64 [T].

    routes: int32 [L, T, U], -1 where there is no expert. resident: bool [L, N].
    """
    n_layer, n_token, _ = routes.shape
    first = np.full((n_layer, resident.shape[1] + 1), n_token)  # the last column takes what is no expert
    layer = np.arange(n_layer)[:, None]
    for token in range(n_token - 1, -1, -1):
        first[layer, routes[:, token]] = token
    absent = first[:, :-1][~resident]
    return np.bincount(absent[absent < n_token], minlength=n_token).cumsum().astype(np.float64)

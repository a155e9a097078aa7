"""Divide the neurons of a feed-forward block into experts, and fit the router that chooses among them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
_ROUNDS = 12
_RIDGE = 1e-2
"""The penalty of the router's regression, as a share of the mean square of an input."""
_SPREAD = 1e-4
"""The standard deviation of the router's logits."""


class Groups(NamedTuple):
    """A layer's experts and its router."""

    shared: Array
    """The neurons that every token uses, int [n_shared * size]."""
    experts: Array
    """The neurons of the experts, int [n_expert, size]."""
    router: Array
    """The router's weights, float32 [n_expert, width]."""


def divide(inputs: Array, neurons: Array, down: Array, n_expert: int, n_shared: int) -> Groups:
    """Return the experts of a layer.

    `inputs` are float32 [T, width], `neurons` float32 [T, N], and `down` is the block's last matrix, float32
    [width, N]. The neurons that add the most are shared. The others are clustered by how strongly each of
    them adds to the output at each token. The router estimates the logarithm of the length of each expert's
    output by ridge regression.
    """
    size = neurons.shape[1] // (n_expert + n_shared)
    strength = np.abs(neurons) * np.linalg.norm(down, axis=0)
    strength /= np.linalg.norm(strength, axis=1, keepdims=True)  # a text's first token has giant values
    order = np.argsort(-np.square(strength).mean(0), kind="stable")
    shared, routed = np.sort(order[: n_shared * size]), np.sort(order[n_shared * size :])
    labels = cluster(strength[:, routed].T, n_expert)
    experts = np.stack([routed[labels == expert] for expert in range(n_expert)])
    return Groups(shared, experts, _router(inputs, lengths(neurons, down, experts)))


def cluster(features: Array, n: int, seed: int = 0) -> Array:
    """Return the cluster of each row of `features` [N, T], by k-means with clusters of equal size.

    Distances are angles. A row whose best cluster is full goes to the next one. The rows that have the
    clearest choice come first.
    """
    rows = features / (np.linalg.norm(features, axis=1, keepdims=True) + 1e-9)
    labels = np.random.default_rng(seed).permutation(len(rows)) % n
    for _ in range(_ROUNDS):
        centres = np.stack([rows[labels == each].sum(0) for each in range(n)])
        likeness = rows @ (centres / (np.linalg.norm(centres, axis=1, keepdims=True) + 1e-9)).T
        room, new = [len(rows) // n] * n, np.empty_like(labels)
        wishes = np.argsort(-likeness, axis=1)
        for row in np.argsort(likeness.mean(1) - likeness.max(1)):
            new[row] = chosen = next(each for each in wishes[row] if room[each])
            room[chosen] -= 1
        if np.array_equal(new, labels):
            break
        labels = new
    return labels


def lengths(neurons: Array, down: Array, experts: Array) -> Array:
    """Return the length of each expert's output at each token, float32 [T, n_expert]."""
    squares = []
    for expert in experts:
        own, part = neurons[:, expert], down[:, expert]
        squares.append(((own @ (part.T @ part)) * own).sum(1))
    return np.sqrt(np.maximum(np.stack(squares, axis=1), 0))


def _router(inputs: Array, wanted: Array) -> Array:
    target = np.log(wanted + 1e-3 * wanted.mean())
    target -= target.mean(1, keepdims=True)
    gram = inputs.T @ inputs
    gram += _RIDGE * np.trace(gram) / len(gram) * np.eye(len(gram), dtype=np.float32)
    weights = np.linalg.solve(gram, inputs.T @ target)
    return np.ascontiguousarray(weights.T * (_SPREAD / (inputs @ weights).std()), np.float32)

"""The routers of a model's MoE layers as values, which give the experts that any hidden states would choose.

`spac.model.gguf.routers` reads them from a file.

SP-MoE's cross-model predictor (section 3.2) shows a draft's hidden states to the target's gating networks,
layer by layer. As in the paper, the routers get the inputs of the draft's own FFNs. These inputs come after
attention, residual and the draft's norm. Nothing is converted from one model's norm to the other's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from spac.machine.arrays import Float32Array, Int32Array

SIGMOID, SQRT_SOFTPLUS = 2, 4  # llama.cpp's numbers of gating functions


@dataclass(frozen=True)
class Routers:
    """The part of a model's routers that chooses experts; the part that weighs them is left out."""

    n_layer: int
    """The number of transformer layers, without those that only predict further tokens."""
    n_embd: int
    """E: the width of a hidden state."""
    blocks: tuple[int, ...]
    """The transformer layer of every MoE layer, from 0."""
    weights: Float32Array
    """The routers' weights, float32 [L, N, E]; zeros where a layer has fewer experts."""
    bias: Float32Array
    """The bias before the gating function, float32 [L, N].

    It is minus infinity where a layer has no such expert.
    """
    selection: Float32Array | None
    """DeepSeek-V3's bias after the gating function, float32 [L, N].

    It affects which experts are chosen, and not their weights.
    """
    gating: int
    """llama.cpp's number of the gating function."""
    groups: tuple[int, int]
    """The number of groups of experts, and how many of them a token uses; (1, 1) for no groups."""

    def scores(self, states: Float32Array, n_layer: int | None = None) -> Float32Array:
        """Return the scores by which the first `n_layer` MoE layers choose experts, float32 [L, T, N].

        The highest scores are chosen first. states: float32 [D, T, E], the inputs of the FFNs of D
        transformer layers. n_layer: all layers by default.
        """
        part = slice(n_layer)
        inputs = states[list(self.blocks[part])]
        scores = np.matmul(inputs, self.weights[part].transpose(0, 2, 1)) + self.bias[part, None]
        if self.selection is not None or self.groups[0] > 1:  # otherwise the order is the logits'
            scores = _gated(scores, self.gating)
            scores[np.broadcast_to(np.isneginf(self.bias[part, None]), scores.shape)] = -np.inf
        if self.selection is not None:
            scores = scores + self.selection[part, None]
        if self.groups[0] > 1:
            scores = _in_best_groups(scores, *self.groups)
        return np.asarray(scores, np.float32)

    def top(self, states: Float32Array, k: Sequence[int] | Int32Array) -> Int32Array:
        """Return the experts that MoE layers would choose for every token, int32 [len(k), T, max(k)].

        MoE layer l chooses k[l] experts, best first, and -1 fills the rest. states: see `scores`. Layers
        beyond k are not computed.
        """
        most = max(k, default=0)
        scores = self.scores(states, len(k))
        chosen = np.argsort(-scores, axis=-1, kind="stable")[..., :most].astype(np.int32)
        chosen[np.broadcast_to(np.arange(most) >= np.asarray(k)[:, None, None], chosen.shape)] = -1
        return chosen


def _gated(logits: Float32Array, gating: int) -> Float32Array:
    if gating == SIGMOID:
        return np.asarray(np.exp(-np.logaddexp(0, -logits)))
    if gating == SQRT_SOFTPLUS:
        return np.asarray(np.sqrt(np.logaddexp(0, logits)))
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=-1, keepdims=True))


def _in_best_groups(scores: Float32Array, n_group: int, n_used: int) -> Float32Array:
    """Return `scores` with minus infinity outside of the best groups (DeepSeek-V3).

    A group's rank is the sum of its two best experts; `n_used` groups of `n_group` are kept.
    """
    grouped = scores.reshape(*scores.shape[:-1], n_group, -1)
    best = np.sort(grouped, axis=-1)[..., -2:].sum(axis=-1)
    rank = np.argsort(np.argsort(-best, axis=-1, kind="stable"), axis=-1)
    return np.where(rank[..., None] < n_used, grouped, -np.inf).reshape(scores.shape).astype(np.float32)

"""The routers of a model's MoE layers as values: what they would choose for any hidden states.

`spac.model.gguf.routers` reads them from a file.

SP-MoE's cross-model predictor (section 3.2) shows a draft's hidden states to the target's gating networks,
layer by layer. They get what enters the draft's own FFNs, as the paper has it: behind attention, residual and
the draft's norm, with nothing converted from one model's norm to the other's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int32]

SIGMOID, SQRT_SOFTPLUS = 2, 4  # llama.cpp's numbers of gating functions


@dataclass(frozen=True)
class Gates:
    """The routers of a model's MoE layers, as far as they choose experts (and not how much each counts)."""

    n_layer: int
    """Transformer layers of the model, without those that only predict further tokens."""
    n_embd: int
    """E: the width of a hidden state."""
    blocks: tuple[int, ...]
    """The transformer layer of every MoE layer, from 0."""
    weights: FloatArray
    """[L, N, E]; zeros where a layer has fewer experts."""
    bias: FloatArray
    """[L, N], before the gating function; minus infinity where a layer has no such expert."""
    selection: FloatArray | None
    """[L, N], behind it: DeepSeek-V3's bias, that chooses and does not weigh."""
    gating: int
    """llama.cpp's number of the gating function."""
    groups: tuple[int, int]
    """Experts stand in so many groups, of which a token uses so many; (1, 1) for none."""

    def scores(self, states: FloatArray, n_layer: int | None = None) -> FloatArray:
        """float32 [L, T, N]: by what the first `n_layer` MoE layers (default: all) choose their experts, the
        highest first. states: float32 [D, T, E], what enters the FFNs of D transformer layers."""
        part = slice(n_layer)
        inputs = states[list(self.blocks[part])]
        scores = np.matmul(inputs, self.weights[part].transpose(0, 2, 1)) + self.bias[part, None]
        if self.selection is not None or self.groups[0] > 1:  # else its order is the logits'
            scores = _gated(scores, self.gating)
            scores[np.broadcast_to(np.isneginf(self.bias[part, None]), scores.shape)] = -np.inf
        if self.selection is not None:
            scores = scores + self.selection[part, None]
        if self.groups[0] > 1:
            scores = _in_best_groups(scores, *self.groups)
        return np.asarray(scores, np.float32)

    def top(self, states: FloatArray, k: Sequence[int] | IntArray) -> IntArray:
        """int32 [len(k), T, max(k)]: the k[l] experts that MoE layer l would choose for every token, best
        first, -1 behind them. states as for `scores`; layers beyond k are not computed."""
        most = max(k, default=0)
        scores = self.scores(states, len(k))
        chosen = np.argsort(-scores, axis=-1, kind="stable")[..., :most].astype(np.int32)
        chosen[np.broadcast_to(np.arange(most) >= np.asarray(k)[:, None, None], chosen.shape)] = -1
        return chosen


def _gated(logits: FloatArray, gating: int) -> FloatArray:
    if gating == SIGMOID:
        return np.asarray(np.exp(-np.logaddexp(0, -logits)))
    if gating == SQRT_SOFTPLUS:
        return np.asarray(np.sqrt(np.logaddexp(0, logits)))
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=-1, keepdims=True))


def _in_best_groups(scores: FloatArray, n_group: int, n_used: int) -> FloatArray:
    """Minus infinity outside of the groups with the highest sums of their two best experts (DeepSeek-V3)."""
    grouped = scores.reshape(*scores.shape[:-1], n_group, -1)
    best = np.sort(grouped, axis=-1)[..., -2:].sum(axis=-1)
    rank = np.argsort(np.argsort(-best, axis=-1, kind="stable"), axis=-1)
    return np.where(rank[..., None] < n_used, grouped, -np.inf).reshape(scores.shape).astype(np.float32)

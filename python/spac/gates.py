"""The routers of a model's MoE layers, read from its file: what they would choose for any hidden states.

SP-MoE's cross-model predictor (section 3.2) shows a draft's hidden states to the target's gating networks,
layer by layer. They get what enters the draft's own FFNs, as the paper has it: behind attention, residual and
the draft's norm, with nothing converted from one model's norm to the other's.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from gguf.quants import dequantize

from spac.errors import InputError
from spac.gguf_check import part_paths
from spac.gguf_header import Header, HeaderError, TensorInfo, read_header
from spac.gguf_info import number

FloatArray = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int32]

_BLOCK = re.compile(r"^blk\.(\d+)\.")
_SIGMOID, _SQRT_SOFTPLUS = 2, 4  # llama.cpp's numbers of gating functions
# Where a selection bias is added to what a softmax gave, though the file names no gating function.
_BIASED_SOFTMAX = frozenset({"ernie4_5-moe", "minimax-01"})


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

    @classmethod
    def read(cls, path: Path, layers: Sequence[str]) -> Gates:
        """Of the MoE layers that have these tensors (`Layer.name`), in this order, from a checked GGUF.

        Raises InputError, one line, where a layer has no router of its own.
        """
        try:
            header = read_header(path)
            parts = [(part, read_header(part)) for part in part_paths(path, header)]
            return _Reader(path, header, parts).gates(layers)
        except HeaderError as fault:
            raise InputError(f"{path}: {fault}") from None
        except (OSError, NotImplementedError) as error:
            raise InputError(f"{path}: its routers cannot be read ({error})") from None


class _Reader:
    """One model's files."""

    def __init__(self, path: Path, header: Header, parts: list[tuple[Path, Header]]) -> None:
        self._path, self._header = path, header
        self._architecture = str(header.metadata["general.architecture"])
        self._tensors = {each.name: (part, its, each) for part, its in parts for each in its.tensors}

    def gates(self, layers: Sequence[str]) -> Gates:
        n_embd = self._number("embedding_length")
        blocks = [self._block(name) for name in layers]
        weights = [self._router(block) for block in blocks]
        n_expert = max((len(each) for each in weights), default=0)
        shape = (len(layers), n_expert)
        stacked, bias = np.zeros((*shape, n_embd), np.float32), np.full(shape, -np.inf, np.float32)
        selection = np.zeros(shape, np.float32)
        biased = False
        for i, (block, weight) in enumerate(zip(blocks, weights, strict=True)):
            n = len(weight)
            stacked[i, :n] = weight
            bias[i, :n] = 0.0
            if (values := self._values(f"blk.{block}.ffn_gate_inp.bias")) is not None:
                bias[i, :n] = values.ravel()
            for name in ("exp_probs_b.bias", "exp_probs_b"):
                if (values := self._values(f"blk.{block}.{name}")) is not None:
                    selection[i, :n] = values.ravel()
                    biased = True
        return Gates(
            n_layer=self._number("block_count") - self._number("nextn_predict_layers"),
            n_embd=n_embd,
            blocks=tuple(blocks),
            weights=stacked,
            bias=bias,
            selection=selection if biased else None,
            gating=self._gating(biased=biased),
            groups=(
                max(1, self._number("expert_group_count")),
                max(1, self._number("expert_group_used_count")),
            ),
        )

    def _gating(self, *, biased: bool) -> int:
        default = _SIGMOID if biased and self._architecture not in _BIASED_SOFTMAX else 0
        return self._number("expert_gating_func") or default

    def _number(self, key: str) -> int:
        return number(self._header, f"{self._architecture}.{key}", 0)

    def _block(self, name: str) -> int:
        found = _BLOCK.match(name)
        if found is None:
            raise HeaderError(f"its tensor {name!r} does not tell its layer", "choose another --scheduler")
        return int(found[1])

    def _router(self, block: int) -> FloatArray:
        """[n_expert, n_embd]"""
        name = f"blk.{block}.ffn_gate_inp.weight"
        weight = self._values(name)
        if weight is None or weight.shape[-1] != self._number("embedding_length"):
            raise HeaderError(
                f"layer {block} has no router {name!r} over hidden states", "choose another --scheduler"
            )
        return weight

    def _values(self, name: str) -> FloatArray | None:
        """A matrix or vector as float32, rows first; None where the model has no such tensor."""
        if name not in self._tensors:
            return None
        path, header, tensor = self._tensors[name]
        return _values(path, header, tensor)


def _values(path: Path, header: Header, tensor: TensorInfo) -> FloatArray:
    data = np.fromfile(path, np.uint8, tensor.n_bytes, offset=header.data_offset + tensor.offset)
    shape = tensor.shape[::-1]
    rows = data.reshape(int(np.prod(shape[:-1])), -1)
    return np.asarray(dequantize(rows, tensor.kind), np.float32).reshape(shape)


def _gated(logits: FloatArray, gating: int) -> FloatArray:
    if gating == _SIGMOID:
        return np.asarray(np.exp(-np.logaddexp(0, -logits)))
    if gating == _SQRT_SOFTPLUS:
        return np.asarray(np.sqrt(np.logaddexp(0, logits)))
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=-1, keepdims=True))


def _in_best_groups(scores: FloatArray, n_group: int, n_used: int) -> FloatArray:
    """Minus infinity outside of the groups with the highest sums of their two best experts (DeepSeek-V3)."""
    grouped = scores.reshape(*scores.shape[:-1], n_group, -1)
    best = np.sort(grouped, axis=-1)[..., -2:].sum(axis=-1)
    rank = np.argsort(np.argsort(-best, axis=-1, kind="stable"), axis=-1)
    return np.where(rank[..., None] < n_used, grouped, -np.inf).reshape(scores.shape).astype(np.float32)

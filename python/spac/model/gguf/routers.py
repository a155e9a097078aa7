"""Reads the routers of a model's MoE layers from its file."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from gguf.quants import dequantize

from spac.errors import InputError
from spac.machine.arrays import Float32Array
from spac.model.gguf.check import part_paths
from spac.model.gguf.header import Header, HeaderError, TensorInfo, read_header
from spac.model.gguf.info import number
from spac.scheduler.routers import SIGMOID, Routers


def read_routers(path: Path, layers: Sequence[str]) -> Routers:
    """Return the routers of the MoE layers that have these tensors (`Layer.name`), in this order.

    The file must be a checked GGUF. Raises InputError, with one line, if a layer has no router of its own.
    """
    try:
        header = read_header(path)
        parts = [(part, read_header(part)) for part in part_paths(path, header)]
        return _Reader(path, header, parts).routers(layers)
    except HeaderError as fault:
        raise InputError(f"{path}: {fault}") from None
    except (OSError, NotImplementedError) as error:
        raise InputError(f"{path}: its routers cannot be read ({error})") from None


_BLOCK = re.compile(r"^blk\.(\d+)\.")


_BIASED_SOFTMAX = frozenset({"ernie4_5-moe", "minimax-01"})
"""Architectures that add a selection bias to a softmax, although the file names no gating function."""


class _Reader:
    """Reads tensors from the files of one model."""

    def __init__(self, path: Path, header: Header, parts: list[tuple[Path, Header]]) -> None:
        self._path, self._header = path, header
        self._architecture = str(header.metadata["general.architecture"])
        self._tensors = {each.name: (part, its, each) for part, its in parts for each in its.tensors}

    def routers(self, layers: Sequence[str]) -> Routers:
        """Return the routers of the layers, padded to the largest number of experts."""
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
        return Routers(
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
        default = SIGMOID if biased and self._architecture not in _BIASED_SOFTMAX else 0
        return self._number("expert_gating_func") or default

    def _number(self, key: str) -> int:
        return number(self._header, f"{self._architecture}.{key}", 0)

    def _block(self, name: str) -> int:
        found = _BLOCK.match(name)
        if found is None:
            raise HeaderError(f"its tensor {name!r} does not tell its layer", "choose another --scheduler")
        return int(found[1])

    def _router(self, block: int) -> Float32Array:
        """Return the router's matrix of a block, float32, [n_expert, n_embd]."""
        name = f"blk.{block}.ffn_gate_inp.weight"
        weight = self._values(name)
        if weight is None or weight.shape[-1] != self._number("embedding_length"):
            raise HeaderError(
                f"layer {block} has no router {name!r} over hidden states", "choose another --scheduler"
            )
        return weight

    def _values(self, name: str) -> Float32Array | None:
        """Return a matrix or vector as float32, rows first; None if the model has no such tensor."""
        if name not in self._tensors:
            return None
        path, header, tensor = self._tensors[name]
        return _values(path, header, tensor)


def _values(path: Path, header: Header, tensor: TensorInfo) -> Float32Array:
    data = np.fromfile(path, np.uint8, tensor.n_bytes, offset=header.data_offset + tensor.offset)
    shape = tensor.shape[::-1]
    rows = data.reshape(int(np.prod(shape[:-1])), -1)
    return np.asarray(dequantize(rows, tensor.kind), np.float32).reshape(shape)

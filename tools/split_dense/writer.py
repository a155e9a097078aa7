"""Write a dense model of the architecture "llama" as one of "deepseek" with experts in place of its blocks.

DeepSeek's first architecture has llama's attention, norms and positions, and experts beside shared ones. Its
router is a softmax whose weights are not normalized again, and `expert_weights_scale` multiplies them. The
logits of a split model are about 1e-4, so every weight is 1 / n_expert to three digits or more, and the scale
n_expert makes it one. The order of the logits still says which experts are chosen. The weights stay near one
for any number of chosen experts, which `expert_used_count` may therefore override. With all experts chosen,
the sum is that of the dense block. Mixtral's form, which "llama" itself has, normalizes the weights, and has
no scale.

The rows of the gate and up matrices keep their quantized values in another order. The columns of the down
matrix change their places within blocks, so it is quantized anew, to Q8_0.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter, quants

from spac.errors import InputError
from tools.models.values import add_values, finish
from tools.split_dense.groups import Array, Groups

SOURCE, RESULT = "llama", "deepseek"
DOWN = GGMLQuantizationType.Q8_0
_BLOCK = 32


class Dense:
    """A dense GGUF file."""

    def __init__(self, path: Path) -> None:
        """Open the file. Raise InputError if it is no dense model of the architecture "llama"."""
        self.path = path
        try:
            self.reader = GGUFReader(path)
        except (OSError, ValueError, IndexError) as error:
            raise InputError(f"{path} cannot be read as a GGUF file: {error}") from None
        self.tensors = {tensor.name: tensor for tensor in self.reader.tensors}
        if self._value("general.architecture") != SOURCE or "blk.0.ffn_gate.weight" not in self.tensors:
            raise InputError(
                f"{path} is no dense model of the architecture {SOURCE!r}; give one with --model"
            )
        self.n_layer = self._value(f"{SOURCE}.block_count")
        self.width = self._value(f"{SOURCE}.embedding_length")
        self.n_neuron = self._value(f"{SOURCE}.feed_forward_length")

    def _value(self, key: str) -> Any:
        field = self.reader.get_field(key)
        if field is None:
            raise InputError(f"{self.path} has no {key}")
        return field.contents()

    def down(self, layer: int) -> Array:
        """Return a layer's down matrix, float32 [width, n_neuron]."""
        tensor = self.tensors[f"blk.{layer}.ffn_down.weight"]
        return quants.dequantize(tensor.data, tensor.tensor_type)

    def size(self, n_expert: int, n_shared: int) -> int:
        """Return an expert's number of neurons. Raise InputError if it is no whole number of blocks."""
        size, rest = divmod(self.n_neuron, n_expert + n_shared)
        if rest or size % _BLOCK:
            raise InputError(
                f"{self.n_neuron} neurons do not divide into {n_expert} experts and {n_shared} shared ones: "
                f"their sum has to divide {self.n_neuron // _BLOCK}"
            )
        return size


def write(dense: Dense, path: Path, groups: list[Groups], n_used: int, n_shared: int) -> None:
    """Write the split model. An old file at `path` is replaced at the end, in one step."""
    n_expert, size = groups[0].experts.shape
    partial = path.with_suffix(".partial")
    writer = GGUFWriter(partial, RESULT)
    for key, field in dense.reader.fields.items():
        if key.startswith("GGUF.") or key == "general.architecture":
            continue
        key = key.replace(f"{SOURCE}.", f"{RESULT}.", 1) if key.startswith(f"{SOURCE}.") else key
        element = field.types[-1] if field.types[0] == GGUFValueType.ARRAY else None
        writer.add_key_value(key, field.contents(), field.types[0], element)
    counts = {
        "expert_count": n_expert, "expert_used_count": n_used, "expert_shared_count": n_shared,
        "expert_feed_forward_length": size, "expert_weights_scale": float(n_expert),
        "leading_dense_block_count": 0,
    }  # fmt: skip
    add_values(writer, RESULT, counts)
    for name, tensor in dense.tensors.items():
        if ".ffn_" not in name or name.endswith("ffn_norm.weight"):
            _add(writer, name, tensor.data, tensor.tensor_type)
            continue
        group = groups[int(name.split(".")[1])]
        matrix = name.removesuffix(".weight")
        if name.endswith("ffn_down.weight"):
            kind, values = DOWN, quants.dequantize(tensor.data, tensor.tensor_type)

            def part(neurons: Array, values: Array = values) -> Array:
                return quants.quantize(np.ascontiguousarray(values[:, neurons]), DOWN)
        else:
            kind, part = tensor.tensor_type, tensor.data.__getitem__
        _add(writer, f"{matrix}_exps.weight", np.stack([part(each) for each in group.experts]), kind)
        _add(writer, f"{matrix}_shexp.weight", part(group.shared), kind)
        if name.endswith("ffn_gate.weight"):
            router = name.replace("ffn_gate", "ffn_gate_inp")
            _add(writer, router, group.router, GGMLQuantizationType.F32)
    finish(writer)
    partial.replace(path)


def _add(writer: GGUFWriter, name: str, data: Array, kind: GGMLQuantizationType) -> None:
    writer.add_tensor(name, np.ascontiguousarray(data), raw_dtype=kind)

"""Write a dense model of the architecture "llama" as one of "glm4moe" with experts in place of its blocks.

GLM-4.5's architecture has llama's attention and norms, experts beside shared ones, and a layer that predicts
one token more. Its router is a sigmoid, and `expert_weights_scale` multiplies the weights of the chosen
experts, which are not normalized. The logits of a split model are about 1e-4, so every sigmoid is 1/2 to
three digits or more, and the scale 2 makes it one. The order of the logits still says which experts are
chosen. The weights stay near one for any number of chosen experts, which `expert_used_count` may therefore
override. With all experts chosen, the sum is that of the dense block. Mixtral's form, which "llama" itself
has, normalizes the weights, and has no scale.

Llama turns neighbouring values of a head by their position, and glm4moe values that are half a head apart. So
the rows of the query and key matrices change places within their heads. These rows, and those of the gate and
up matrices, keep their quantized values. The columns of the down matrix change their places within blocks, so
it is quantized anew, to Q8_0.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter, quants

from spac.errors import InputError
from tools.models.values import add_values, finish
from tools.split_dense.groups import Array, Groups

SOURCE, RESULT = "llama", "glm4moe"
DOWN = GGMLQuantizationType.Q8_0
_BLOCK = 32
_SIGMOID = 2  # llama.cpp's number of this gating function


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
        if "rope_freqs.weight" in self.tensors:
            raise InputError(
                f"{path} stretches positions by rope_freqs, for which {RESULT!r} has no place; "
                "give another model with --model"
            )
        self.n_layer = self._value(f"{SOURCE}.block_count")
        self.width = self._value(f"{SOURCE}.embedding_length")
        self.n_neuron = self._value(f"{SOURCE}.feed_forward_length")

    def _value(self, key: str) -> Any:
        field = self.reader.get_field(key)
        if field is None:
            raise InputError(f"{self.path} has no {key}")
        return field.contents()

    def turned(self, n_row: int) -> Array:
        """Return the row of a query or key matrix that comes to each place, int [n_row]."""
        head = np.arange(self._value(f"{SOURCE}.rope.dimension_count")).reshape(-1, 2).T.ravel()
        return (np.arange(0, n_row, len(head))[:, None] + head).ravel()

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
    _copy_values(writer, dense.reader)
    counts = {
        "expert_count": n_expert, "expert_used_count": n_used, "expert_shared_count": n_shared,
        "expert_feed_forward_length": size, "expert_weights_scale": 2.0, "expert_gating_func": _SIGMOID,
        "leading_dense_block_count": 0,
    }  # fmt: skip
    add_values(writer, RESULT, counts)
    for name, tensor in dense.tensors.items():
        if ".ffn_" not in name or name.endswith("ffn_norm.weight"):
            rows = dense.turned(len(tensor.data)) if ".attn_q." in name or ".attn_k." in name else slice(None)
            name = name.replace(".ffn_norm.", ".post_attention_norm.")
            _add(writer, name, tensor.data[rows], tensor.tensor_type)
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
            bias = router.replace("ffn_gate_inp.weight", "exp_probs_b.bias")
            _add(writer, bias, np.zeros(n_expert, np.float32), GGMLQuantizationType.F32)
    finish(writer)
    partial.replace(path)


def add_prediction(path: Path, layer: Mapping[str, Array]) -> None:
    """Add a layer that predicts one token more to a split model, in the types of the model's last layer.

    `layer` has float32 matrices by their names, without `blk.` and `weight`. The feed-forward ones have the
    neurons of all experts in their order, then the shared ones.
    """
    reader = GGUFReader(path)
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    n_layer = reader.fields[f"{RESULT}.block_count"].contents()
    n_expert = reader.fields[f"{RESULT}.expert_count"].contents()
    n_routed = n_expert * reader.fields[f"{RESULT}.expert_feed_forward_length"].contents()
    writer = GGUFWriter(path.with_suffix(".partial"), RESULT)
    _copy_values(writer, reader, {f"{RESULT}.block_count"})
    add_values(writer, RESULT, {"block_count": n_layer + 1, "nextn_predict_layers": 1})
    for name, tensor in tensors.items():
        _add(writer, name, tensor.data, tensor.tensor_type)
    last = f"blk.{n_layer - 1}."
    for name in (name for name in tensors if name.startswith(last)):
        plain, _, end = name.removeprefix(last).rpartition(".")
        values = _part(layer, plain, n_expert, n_routed)
        kind = tensors[name].tensor_type
        _add(writer, f"blk.{n_layer}.{plain}.{end}", quants.quantize(values, kind), kind)
    for name, values in layer.items():
        if name.startswith("nextn."):
            kind = DOWN if values.ndim > 1 else GGMLQuantizationType.F32
            _add(writer, f"blk.{n_layer}.{name}.weight", quants.quantize(values, kind), kind)
    finish(writer)
    path.with_suffix(".partial").replace(path)


def _part(layer: Mapping[str, Array], name: str, n_expert: int, n_routed: int) -> Array:
    """Return the values of one tensor of a layer, such as "ffn_up_exps"."""
    matrix, _, kind = name.rpartition("_")
    if kind not in ("exps", "shexp"):
        return layer.get(name, np.zeros(n_expert, np.float32))  # the bias of the choice is zero
    is_down = matrix == "ffn_down"  # its last dimension has the neurons, the others' first one
    neurons = layer[matrix].T if is_down else layer[matrix]
    shared, routed = neurons[n_routed:], neurons[:n_routed].reshape(n_expert, -1, neurons.shape[1])
    values = routed if kind == "exps" else shared
    return np.ascontiguousarray(values.swapaxes(-1, -2) if is_down else values)


def _copy_values(writer: GGUFWriter, reader: GGUFReader, without: Collection[str] = ()) -> None:
    """Copy a file's metadata, under the names of the new architecture."""
    for key, field in reader.fields.items():
        if key.startswith("GGUF.") or key == "general.architecture" or key in without:
            continue
        key = key.replace(f"{SOURCE}.", f"{RESULT}.", 1) if key.startswith(f"{SOURCE}.") else key
        element = field.types[-1] if field.types[0] == GGUFValueType.ARRAY else None
        writer.add_key_value(key, field.contents(), field.types[0], element)


def _add(writer: GGUFWriter, name: str, data: Array, kind: GGMLQuantizationType) -> None:
    writer.add_tensor(name, np.ascontiguousarray(data), raw_dtype=kind)

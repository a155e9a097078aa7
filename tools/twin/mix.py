"""Choose the ggml type of every tensor, by the rules that llama.cpp quantizes files with."""

from __future__ import annotations

import re
from dataclasses import dataclass

from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from tools.models.parts import Tensor

MIXES = ("q4_k_m", "q8_0", "f16", "mxfp4")
FILE_TYPES = {"q4_k_m": 15, "q8_0": 7, "f16": 1, "mxfp4": 38}
"""Values of general.file_type, llama.cpp's llama_ftype."""

_SMALLER = {"Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0"}  # used where a row is not whole blocks of 256
_ATTENTION = re.compile(r"blk\.\d+\.attn_(q|k|v|output)\.weight")


@dataclass(frozen=True)
class Mix:
    """One of `MIXES` for a model of that many layers and experts (0: dense)."""

    name: str
    n_layer: int
    n_expert: int

    def type_of(self, tensor: Tensor) -> GGMLQuantizationType:
        """Return the type of a tensor. Norms, biases and routers are F32."""
        if tensor.kind in ("norm", "bias", "router") or len(tensor.shape) == 1:
            return GGMLQuantizationType.F32
        wanted = {
            "q4_k_m": self._q4_k_m(tensor.name),
            "q8_0": "Q8_0",
            "f16": "F16",
            "mxfp4": "MXFP4" if "_exps." in tensor.name else "Q8_0",
        }[self.name]
        for choice in (wanted, _SMALLER.get(wanted, wanted)):
            if tensor.shape[-1] % GGML_QUANT_SIZES[GGMLQuantizationType[choice]][0] == 0:
                return GGMLQuantizationType[choice]
        return GGMLQuantizationType.F16

    def _q4_k_m(self, name: str) -> str:
        """Return Q4_K, with more bits for the head, and for values and down projections in some layers."""
        if name == "output.weight":
            return "Q6_K"
        if self.n_expert == 8 and (
            match := _ATTENTION.match(name)
        ):  # attention costs little beside 8 experts
            return {"q": "Q4_K", "k": "Q8_0", "v": "Q8_0", "output": "Q5_K"}[match[1]]
        if re.search(r"\.(attn_v|attn_kv_b|ffn_down(_exps|_shexp)?)\.", name) and self._more_bits(name):
            return "Q6_K"
        return "Q4_K"

    def _more_bits(self, name: str) -> bool:
        layer, eighth = int(name.split(".")[1]), self.n_layer // 8
        return layer < eighth or layer >= 7 * self.n_layer // 8 or (layer - eighth) % 3 == 2

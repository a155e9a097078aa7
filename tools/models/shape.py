"""Describe a tiny model: its sizes, its weight types and its family's own options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase

from gguf import GGMLQuantizationType


@dataclass(frozen=True)
class Shape:
    """Sizes and weight types of a tiny model. Every family reads the fields that it uses.

    ``types`` maps patterns (`fnmatch`, over "blk.1.ffn_down_exps.weight" and "ffn_down_exps") to names of
    ggml types. The last pattern that fits applies, and "*" is F32 by default. Norms, biases and routers stay
    F32 unless a pattern names them without a wildcard. ``options`` are a family's own switches, those of
    `Family.options`. deepseek2 has the sizes of `parts.latent_sizes`, and "sigmoid": its gating, with a
    selection bias, and weights normed and scaled. `parts.experts` describes "merged", "gateless" and
    "scales". The first "deepstack" layers of qwen3vlmoe get embeddings of images. The last "mtp" layers
    predict tokens after the next one. One layer in "moe_every" of llama4 has experts.
    """

    n_layer: int = 3
    n_embd: int = 64
    n_head: int = 4
    n_head_kv: int = 2
    head_dim: int = 32
    n_ff: int = 96  # dense layers
    n_expert: int = 5
    n_used: int = 2
    n_ff_exp: int = 96
    n_shared: int = 1  # shared experts, in families that have them
    n_dense: int = 1  # leading dense layers, in families that have them
    n_group: int = 1  # expert groups; above 1 in families that route by groups
    n_group_used: int = 1
    n_swa: int = 64  # sliding window, in families that have one
    n_ctx: int = 4096
    n_vocab: int = 0  # 0: the tokenizer's vocabulary; more: padded with unused tokens
    seed: int = 0
    types: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, int] = field(default_factory=dict)

    def type_of(self, tensor: str, *, is_matrix: bool) -> GGMLQuantizationType:
        """Return the ggml type of the tensor with this full name ("blk.0.ffn_up_exps.weight")."""
        stem = tensor.removesuffix(".weight")
        short = stem.split(".", 2)[-1] if stem.startswith("blk.") else stem
        chosen = "F32"
        for pattern, type_name in self.types.items():
            if not is_matrix and ("*" in pattern.removeprefix("blk.*.") or "?" in pattern):
                continue
            if any(fnmatchcase(name, pattern) for name in (tensor, stem, short)):
                chosen = type_name
        try:
            return GGMLQuantizationType[chosen.upper()]
        except KeyError:
            known = ", ".join(t.name for t in GGMLQuantizationType)
            raise ValueError(f"unknown weight type {chosen!r} for {tensor}; known: {known}") from None

    def option(self, name: str, default: int = 0) -> int:
        """Return a family's own switch."""
        return self.options.get(name, default)

    def with_prediction(self, n: int = 1) -> Shape:
        """Return this shape with `n` layers more, for multi-token prediction (MTP)."""
        return replace(self, n_layer=self.n_layer + n, options={**self.options, "mtp": n})

    def predicts(self, il: int) -> bool:
        """Return whether a layer is one for multi-token prediction."""
        return il >= self.n_layer - self.option("mtp")

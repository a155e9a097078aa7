"""List the models that have twins: their shapes and metadata as their published files have them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tools.models import Shape

_YARN = {"rope.scaling.type": "yarn", "rope.scaling.original_context_length": 4096}


@dataclass(frozen=True)
class Named:
    """A model: its family in tools/models, its sizes, metadata beside the family's, its usual mix, and its
    draft model."""

    family: str
    shape: Shape
    metadata: Mapping[str, Any] = field(default_factory=dict)
    pre: str = "gpt-2"
    mix: str = "q4_k_m"
    draft: str | None = None

    def narrow(self, width: int, n_vocab: int = 0) -> Named:
        """Return the same layers and experts, `width` wide. Routing and scheduling stay, and computing is
        cheap."""
        if width < 64 or width % 32:
            raise ValueError(f"a width of {width} is not a multiple of 32 from 64 on")
        shape = replace(
            self.shape, n_embd=width, n_head=4, n_head_kv=2, head_dim=32, n_ff=2 * width,
            n_ff_exp=max(32, width // 4 // 32 * 32), n_vocab=n_vocab or self.shape.n_vocab, options={},
        )  # fmt: skip
        if self.family == "mixtral":
            shape = replace(shape, n_ff_exp=32)
        return replace(self, shape=shape)


_QWEN3 = {"rope.freq_base": 1e6}

MODELS: dict[str, Named] = {
    "qwen3-30b-a3b": Named(
        "qwen3moe",
        Shape(n_layer=48, n_embd=2048, n_head=32, n_head_kv=4, head_dim=128, n_ff=6144, n_expert=128,
              n_used=8, n_ff_exp=768, n_ctx=40960, n_vocab=151936),
        _QWEN3, "qwen2", draft="qwen3-4b",
    ),
    "deepseek-v2-lite": Named(
        "deepseek2",
        Shape(n_layer=27, n_embd=2048, n_head=16, n_head_kv=16, n_ff=10944, n_expert=64, n_used=6,
              n_ff_exp=1408, n_shared=2, n_dense=1, n_ctx=163840, n_vocab=102400,
              options={"kv_rank": 512, "nope": 128, "rope": 64, "value": 128}),
        {**_YARN, "rope.scaling.factor": 40.0, "rope.scaling.yarn_log_multiplier": 0.0707}, "deepseek-llm",
        draft="qwen3-0.6b",
    ),
    "gpt-oss-20b": Named(
        "gpt-oss",
        Shape(n_layer=24, n_embd=2880, n_head=64, n_head_kv=8, head_dim=64, n_ff=2880, n_expert=32, n_used=4,
              n_ff_exp=2880, n_swa=128, n_ctx=131072, n_vocab=201088),
        {**_YARN, "rope.scaling.factor": 32.0, "rope.freq_base": 150000.0,
         "attention.layer_norm_rms_epsilon": 1e-5},
        "gpt-4o", mix="mxfp4", draft="qwen3-0.6b",
    ),
    "mixtral-8x7b": Named(
        "mixtral",
        Shape(n_layer=32, n_embd=4096, n_head=32, n_head_kv=8, head_dim=128, n_ff=14336, n_expert=8, n_used=2,
              n_ff_exp=14336, n_ctx=32768, n_vocab=32000),
        {"rope.freq_base": 1e6, "attention.layer_norm_rms_epsilon": 1e-5}, draft="qwen3-0.6b",
    ),
    "qwen3-4b": Named(
        "qwen3",
        Shape(n_layer=36, n_embd=2560, n_head=32, n_head_kv=8, head_dim=128, n_ff=9728, n_ctx=40960,
              n_vocab=151936, n_expert=0, n_used=0),
        _QWEN3, "qwen2",
    ),
    "qwen3-0.6b": Named(
        "qwen3",
        Shape(n_layer=28, n_embd=1024, n_head=16, n_head_kv=8, head_dim=128, n_ff=3072, n_ctx=40960,
              n_vocab=151936, n_expert=0, n_used=0),
        _QWEN3, "qwen2",
    ),
    "tiny": Named(
        "qwen3moe",
        Shape(n_layer=4, n_embd=128, n_head=4, n_head_kv=2, head_dim=32, n_ff=256, n_expert=128, n_used=8,
              n_ff_exp=32, n_ctx=4096, n_vocab=2048),
        _QWEN3, "qwen2", draft="tiny-draft",
    ),
    "tiny-draft": Named(
        "qwen3",
        Shape(n_layer=2, n_embd=128, n_head=4, n_head_kv=2, head_dim=32, n_ff=256, n_ctx=4096, n_vocab=2048,
              n_expert=0, n_used=0),
        _QWEN3, "qwen2",
    ),
}  # fmt: skip

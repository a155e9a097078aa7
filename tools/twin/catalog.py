"""List the models that have twins: their shapes and metadata as their published files have them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tools.models import FAMILIES, LOADER_FAMILIES, Shape
from tools.models.families import Metadata
from tools.models.parts import Tensor, matrix
from tools.twin.drift import Drift

_WORDS = re.compile(r"^token_embd|^output\.weight|tid2eid|shared_head_head")
_EXPERTS = re.compile(r"_exps\.|ffn_gate_inp\.weight|exp_probs_b")
_YARN = {"rope.scaling.type": "yarn", "rope.scaling.original_context_length": 4096}


@dataclass(frozen=True)
class Named:
    """A model: its family in tools/models, its sizes, metadata beside the family's, its usual mix, and its
    draft model. `wide` is metadata of the full width alone. `drift` is None for the published locality of
    Qwen3-30B. `period`: the first layer that others repeat, and after how many layers they do."""

    family: str
    shape: Shape
    metadata: Mapping[str, Any] = field(default_factory=dict)
    pre: str = "gpt-2"
    mix: str = "q4_k_m"
    draft: str | None = None
    wide: Mapping[str, Any] = field(default_factory=dict)
    drift: Drift | None = None
    period: tuple[int, int] = (0, 1)

    def narrow(self, width: int, n_vocab: int = 0) -> Named:
        """Return the same layers and experts, `width` wide. Routing and scheduling stay, and computing is
        cheap."""
        if width < 64 or width % 32:
            raise ValueError(f"a width of {width} is not a multiple of 32 from 64 on")
        shape = replace(
            self.shape, n_embd=width, n_head=4, n_head_kv=2, head_dim=32, n_ff=2 * width,
            n_ff_exp=max(32, width // 4 // 32 * 32), n_vocab=n_vocab or self.shape.n_vocab, options={},
        )  # fmt: skip
        return replace(self, shape=shape, wide={})

    def with_prediction(self) -> Named:
        """Return this model with a layer for multi-token prediction (MTP)."""
        if "mtp" not in FAMILIES[self.family].options:
            raise ValueError(f"--mtp: there are no twins of {self.family} with a prediction layer")
        metadata = dict(self.metadata)
        if ratios := metadata.get(_RATIOS):  # a prediction layer compresses nothing
            metadata[_RATIOS] = [*ratios[: self.shape.n_layer], 0]
        return replace(self, shape=self.shape.with_prediction(), metadata=metadata)

    def family_metadata(self) -> Metadata:
        """Return all keys without the architecture's prefix."""
        return {**FAMILIES[self.family].metadata(self.shape), **self.metadata, **self.wide}

    def tensors(self) -> list[Tensor]:
        """Return all tensors. The loader allocates what it describes. So it is asked for a period of layers,
        the experts of one token and few words."""
        family, s = LOADER_FAMILIES.get(self.family), self.shape
        if family is None:
            return FAMILIES[self.family].tensors(s, s.n_vocab)
        first, length = self.period
        asked = replace(s, n_layer=first + length + s.option("mtp"), n_expert=s.n_used, n_vocab=0)
        more = {**self.metadata, **self.wide}
        if isinstance(ratios := more.get(_RATIOS), list):
            more[_RATIOS] = [*ratios[: first + length], *ratios[s.n_layer - s.option("mtp") :]]
        own = replace(family, more=lambda s: {**family.more(s), **more})
        # A prediction layer embeds with the model's table, and has a head of its own.
        found = [self._sized(each) for each in own.tensors(asked, 0) if "embed_tokens" not in each.name]
        if s.option("mtp") and not any("shared_head_head" in each.name for each in found):
            found.append(matrix(f"blk.{first + length}.nextn.shared_head_head", s.n_vocab, s.n_embd))
        layers = [each for each in found if each.name.startswith("blk.")]
        like = [il if il < first else first + (il - first) % length for il in range(s.n_layer)]
        like[s.n_layer - s.option("mtp") :] = range(first + length, asked.n_layer)
        return [each for each in found if each not in layers] + [
            replace(each, name=each.name.replace(f"blk.{of}.", f"blk.{il}."))
            for il, of in enumerate(like)
            for each in layers
            if each.name.startswith(f"blk.{of}.")
        ]

    def _sized(self, tensor: Tensor) -> Tensor:
        """Return a tensor with as many experts or words as the model has."""
        sizes = ((_WORDS, self.shape.n_vocab), (_EXPERTS, self.shape.n_expert))
        n = next((n for names, n in sizes if names.search(tensor.name)), tensor.shape[0])
        return replace(tensor, shape=(n, *tensor.shape[1:]))


_RATIOS = "attention.compress_ratios"
_QWEN3 = {"rope.freq_base": 1e6}
# Hybrids: every fourth layer has attention, the others a state of gated delta nets.
_QWEN35 = {"rope.freq_base": 1e7, "full_attention_interval": 4, "ssm.inner_size": 128}
_QWEN35_WIDE = {
    "rope.dimension_count": 64, "rope.dimension_sections": [11, 11, 10, 0], "ssm.state_size": 128,
    "ssm.group_count": 16,
}  # fmt: skip
_GPT_OSS = {
    **_YARN, "rope.scaling.factor": 32.0, "rope.freq_base": 150000.0,
    "attention.layer_norm_rms_epsilon": 1e-5,
}  # fmt: skip
_GPT_OSS_20B = Shape(n_layer=24, n_embd=2880, n_head=64, n_head_kv=8, head_dim=64, n_ff=2880, n_expert=32,
                     n_used=4, n_ff_exp=2880, n_swa=128, n_ctx=131072, n_vocab=201088)  # fmt: skip

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
        "gpt-oss", _GPT_OSS_20B, _GPT_OSS,
        "gpt-4o", mix="mxfp4", draft="qwen3-0.6b",
    ),
    "gpt-oss-120b": Named(
        "gpt-oss", replace(_GPT_OSS_20B, n_layer=36, n_expert=128), _GPT_OSS, "gpt-4o", mix="mxfp4",
        draft="qwen3-0.6b", drift=Drift(0.45, 0.95, 0.2),
    ),
    "qwen3.6-35b-a3b": Named(
        "qwen35moe",
        Shape(n_layer=40, n_embd=2048, n_head=16, n_head_kv=2, head_dim=256, n_ff=0, n_expert=256, n_used=8,
              n_ff_exp=512, n_ctx=262144, n_vocab=248320),
        _QWEN35, "qwen35", draft="qwen3-0.6b",
        wide={**_QWEN35_WIDE, "ssm.inner_size": 4096, "ssm.time_step_rank": 32},
        drift=Drift(0.6, 0.9, 0.15), period=(0, 4),
    ),
    "qwen3.8-flash-next": Named(
        "qwen4exp",
        Shape(n_layer=48, n_embd=2560, n_head=24, n_head_kv=2, head_dim=256, n_ff=0, n_expert=512, n_used=10,
              n_ff_exp=640, n_ctx=262144, n_vocab=248320),
        {**_QWEN35, "attention.compress_ratios": 4}, "qwen35", draft="qwen3-0.6b",
        wide={**_QWEN35_WIDE, "ssm.inner_size": 6144, "ssm.time_step_rank": 48,
              "hyper_connection.low_rank": 320, "attention.indexer.head_count": 4,
              "attention.indexer.key_length": 128, "attention.indexer.top_k": 2048},
        drift=Drift(0.4, 0.9, 0.3), period=(0, 4),
    ),
    "deepseek-v4-flash": Named(
        "deepseek4",
        Shape(n_layer=43, n_embd=4096, n_head=64, n_head_kv=1, head_dim=512, n_ff=0, n_expert=256, n_used=6,
              n_ff_exp=2048, n_swa=128, n_ctx=1048576, n_vocab=129280),
        {"hash_layer_count": 3, _RATIOS: [0, 0, *[4, 128] * 20, 4],
         "hyper_connection.sinkhorn_iterations": 20},
        "joyai-llm", mix="mxfp4", draft="qwen3-0.6b",
        wide={"rope.scaling.type": "yarn", "rope.scaling.factor": 16.0,
              "rope.scaling.original_context_length": 65536, "rope.dimension_count": 64,
              "attention.q_lora_rank": 1024, "attention.output_group_count": 8,
              "attention.output_lora_rank": 1024, "attention.indexer.head_count": 64,
              "attention.indexer.key_length": 128, "attention.indexer.top_k": 512},
        drift=Drift(0.4, 0.95, 0.2), period=(3, 2),
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

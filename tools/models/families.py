"""Define the architectures: each one is metadata and a list of tensors.

To add one, read its `load_arch_hparams` and `load_arch_tensors` in llama.cpp's src/models. Put it together
from `parts`, and register it at the end. Or let the loader describe its tensors (loader_families.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tools.models import parts
from tools.models.parts import LatentSizes, Tensor
from tools.models.shape import Shape

Metadata = dict[str, Any]


@dataclass(frozen=True)
class Family:
    """One architecture: llama.cpp's name for it, its metadata (keys without the architecture's prefix), its
    tensors."""

    architecture: str
    metadata: Callable[[Shape], Metadata]
    layer: Callable[[Shape, int], list[Tensor]]
    embedding: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)
    default: Shape = field(default_factory=Shape)
    rewinds: bool = True  # tokens can be removed one by one, which a state does not allow
    embeds: bool = False  # gives embeddings, no logits

    def tensors(self, shape: Shape, n_vocab: int) -> list[Tensor]:
        """Return all tensors in file order."""
        embedding = parts.embedding(shape, n_vocab, **self.embedding)
        return [*embedding, *(t for il in range(shape.n_layer) for t in self.layer(shape, il))]


def _base(s: Shape, **more: Any) -> Metadata:
    return {
        "context_length": s.n_ctx,
        "embedding_length": s.n_embd,
        "block_count": s.n_layer,
        "feed_forward_length": s.n_ff,
        "attention.head_count": s.n_head,
        "attention.head_count_kv": s.n_head_kv,
        "attention.key_length": s.head_dim,
        "attention.value_length": s.head_dim,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "rope.dimension_count": s.head_dim,
        "rope.freq_base": 10000.0,
        **more,
    }


def _moe(s: Shape, **more: Any) -> Metadata:
    return _base(
        s, expert_count=s.n_expert, expert_used_count=s.n_used, expert_feed_forward_length=s.n_ff_exp, **more
    )


def _grouped(s: Shape) -> Metadata:
    return (
        {"expert_group_count": s.n_group, "expert_group_used_count": s.n_group_used} if s.n_group > 1 else {}
    )


def _latent(s: Shape) -> LatentSizes:
    sizes = {name: s.options[name] for name in ("kv_rank", "nope", "rope", "value") if name in s.options}
    return LatentSizes(q_rank=s.option("q_rank"), absorbed=bool(s.option("absorbed", 1)), **sizes)


def _deepseek2_metadata(s: Shape) -> Metadata:
    mla = _latent(s)
    sigmoid = bool(s.option("sigmoid"))
    meta = _moe(
        s,
        **{
            "leading_dense_block_count": s.n_dense,
            "expert_shared_count": s.n_shared,
            "expert_weights_scale": 1.5 if sigmoid else 1.0,
            "expert_weights_norm": sigmoid,
            "expert_gating_func": 2 if sigmoid else 1,
            "attention.q_lora_rank": mla.q_rank,
            "attention.kv_lora_rank": mla.kv_rank,
            "attention.key_length": mla.nope + mla.rope,
            "attention.value_length": mla.value,
            "rope.dimension_count": mla.rope,
            **_grouped(s),
        },
    )
    meta["attention.head_count_kv"] = s.n_head
    if mla.absorbed:
        meta["attention.head_count_kv"] = 1
        meta["attention.key_length_mla"] = meta["attention.key_length"]
        meta["attention.value_length_mla"] = meta["attention.value_length"]
        meta["attention.key_length"] = mla.kv_rank + mla.rope
        meta["attention.value_length"] = mla.kv_rank
    return meta


def _deepseek2_layer(s: Shape, il: int) -> list[Tensor]:
    tensors = parts.latent_attention(s, il, _latent(s))
    if il < s.n_dense:
        return tensors + parts.dense(s, il)
    moe = parts.experts(s, il, merged=bool(s.option("merged")), selection_bias=bool(s.option("sigmoid")))
    return tensors + moe + parts.shared_expert(s, il)


def _glm4moe_layer(s: Shape, il: int) -> list[Tensor]:
    tensors = parts.attention(s, il, qk_norm=s.head_dim, qkv_bias=True)
    if il < s.n_dense:
        return tensors + parts.dense(s, il, with_norm="post_attention_norm")
    moe = parts.experts(s, il, with_norm="post_attention_norm", selection_bias=True)
    predicts = bool(s.option("mtp")) and il == s.n_layer - 1
    return tensors + moe + parts.shared_expert(s, il) + (parts.prediction(s, il) if predicts else [])


def _llama4_layer(s: Shape, il: int) -> list[Tensor]:
    tensors = parts.attention(s, il)
    if (il + 1) % s.option("moe_every", 2):
        return tensors + parts.dense(s, il)
    return tensors + parts.experts(s, il) + parts.shared_expert(s, il, n_ff=s.n_ff_exp)


def _phimoe_layer(s: Shape, il: int) -> list[Tensor]:
    tensors = parts.attention(s, il, qkv_bias=True, out_bias=True, norm_bias=True)
    return [*tensors, *parts.experts(s, il, n_ff=s.n_ff), parts.bias(f"blk.{il}.ffn_norm", s.n_embd)]


def _shared_moe(s: Shape, **more: Any) -> Metadata:
    return _moe(s, leading_dense_block_count=s.n_dense, expert_shared_count=s.n_shared, **more)


def _with_shared(s: Shape, il: int, *, qk_norm: int = 0, selection_bias: bool = False) -> list[Tensor]:
    """Return dense feed-forward tensors in the leading layers, then experts with a shared one."""
    tensors = parts.attention(s, il, qk_norm=qk_norm)
    if il < s.n_dense:
        return tensors + parts.dense(s, il)
    return tensors + parts.experts(s, il, selection_bias=selection_bias) + parts.shared_expert(s, il)


def _grovemoe_layer(s: Shape, il: int) -> list[Tensor]:
    """Return experts, and smaller ones beside them, each for a group of two."""
    p, n = f"blk.{il}.ffn_", s.n_expert // 2
    return [
        *parts.attention(s, il, qk_norm=s.head_dim),
        *parts.experts(s, il),
        parts.matrix(p + "gate_chexps", n, s.head_dim, s.n_embd),
        parts.matrix(p + "up_chexps", n, s.head_dim, s.n_embd),
        parts.matrix(p + "down_chexps", n, s.n_embd, s.head_dim, gain=2.0),
    ]


def _bailingmoe2_layer(s: Shape, il: int) -> list[Tensor]:
    tensors = parts.attention(s, il, qk_norm=s.head_dim, fused=True)
    if il < s.n_dense:
        return tensors + parts.dense(s, il)
    return tensors + parts.experts(s, il, selection_bias=True) + parts.shared_expert(s, il)


def _grok_layer(s: Shape, il: int) -> list[Tensor]:
    norms = [parts.norm(f"blk.{il}.{name}", s.n_embd) for name in ("attn_output_norm", "layer_output_norm")]
    return [*parts.attention(s, il), *norms, *parts.experts(s, il)]


def _arctic_layer(s: Shape, il: int) -> list[Tensor]:
    """Return experts beside a dense block as wide as the model."""
    beside = parts.dense(replace(s, n_ff=s.n_embd), il)
    return [*parts.attention(s, il), *beside, *parts.experts(s, il, with_norm="ffn_norm_exps", n_ff=s.n_ff)]


_FULL_HEADS = Shape(
    n_embd=128, n_head=4, head_dim=32
)  # families whose heads together are as wide as the model

FAMILIES: dict[str, Family] = {
    "llama": Family("llama", _base, lambda s, il: parts.attention(s, il) + parts.dense(s, il)),
    "qwen3": Family(
        "qwen3", _base, lambda s, il: parts.attention(s, il, qk_norm=s.head_dim) + parts.dense(s, il)
    ),
    "qwen3moe": Family(
        "qwen3moe",
        _moe,
        lambda s, il: (
            parts.attention(s, il, qk_norm=s.head_dim) + parts.experts(s, il, scales=bool(s.option("scales")))
        ),
        options={"scales": "1: a scale for every expert's matrix"},
    ),
    "qwen3vlmoe": Family(
        "qwen3vlmoe",
        lambda s: {
            **_moe(s),
            "rope.dimension_sections": [s.head_dim // 8] * 4,
            "n_deepstack_layers": s.option("deepstack"),
        },
        lambda s, il: parts.attention(s, il, qk_norm=s.head_dim) + parts.experts(s, il),
        options={"deepstack": "the number of layers that get embeddings of images"},
    ),
    "deepseek2": Family(
        "deepseek2",
        _deepseek2_metadata,
        _deepseek2_layer,
        options={
            "merged": "gate and up in one tensor",
            "sigmoid": "gating by sigmoid with a selection bias, weights normed and scaled",
            "q_rank": "rank of the queries' low-rank form, 0: none",
            "absorbed": "1: k_b and v_b (default), 0: kv_b as in old files",
            "kv_rank": "rank of keys and values together",
            "nope": "dimensions of a head's keys without position",
            "rope": "dimensions of a head's keys with position",
            "value": "dimensions of a head's values",
        },
    ),
    "gpt-oss": Family(
        "gpt-oss",
        lambda s: _moe(s, **{"attention.sliding_window": s.n_swa}),
        lambda s, il: (
            parts.attention(s, il, qkv_bias=True, out_bias=True, sinks=True)
            + parts.experts(s, il, with_norm="post_attention_norm", biases=True)
        ),
        default=Shape(types={"*_exps": "MXFP4"}),
    ),
    "mixtral": Family(
        "llama", _moe, lambda s, il: parts.attention(s, il) + parts.experts(s, il, n_ff=s.n_ff)
    ),
    "olmoe": Family(
        "olmoe",
        _moe,
        lambda s, il: parts.attention(s, il, qk_norm=-1) + parts.experts(s, il, n_ff=s.n_ff),
        default=Shape(n_embd=128, n_head_kv=4),
    ),
    "qwen2moe": Family(
        "qwen2moe",
        lambda s: _moe(s, expert_shared_feed_forward_length=s.n_ff_exp * s.n_shared),
        lambda s, il: (
            parts.attention(s, il, qkv_bias=True)
            + parts.experts(s, il)
            + parts.shared_expert(s, il, gated=True)
        ),
        default=_FULL_HEADS,
    ),
    "glm4moe": Family(
        "glm4moe",
        lambda s: _moe(
            s,
            expert_shared_count=s.n_shared,
            leading_dense_block_count=s.n_dense,
            expert_weights_scale=1.5,
            expert_weights_norm=True,
            **({"nextn_predict_layers": 1} if s.option("mtp") else {}),
        ),
        _glm4moe_layer,
        options={"mtp": "1: the last layer predicts the token after the next"},
    ),
    "phimoe": Family("phimoe", _moe, _phimoe_layer, embedding={"biases": True}, default=_FULL_HEADS),
    "llama4": Family(
        "llama4",
        lambda s: _moe(s, interleave_moe_layer_step=s.option("moe_every", 2)),
        _llama4_layer,
        options={"moe_every": "every so many layers has experts"},
        default=Shape(n_layer=4, n_used=1),
    ),
    "granitemoe": Family(
        "granitemoe",
        lambda s: _moe(
            s,
            logit_scale=2.0,
            residual_scale=0.5,
            embedding_scale=1.5,
            expert_shared_feed_forward_length=s.n_ff_exp * s.n_shared,
            **{"attention.scale": 0.125},
        ),
        lambda s, il: (
            parts.attention(s, il)
            + parts.experts(s, il, n_ff=s.n_ff, gateless=bool(s.option("gateless")))
            + parts.shared_expert(s, il)
        ),
        options={"gateless": "1: experts of two matrices"},
    ),
    "minimax-m2": Family(
        "minimax-m2",
        lambda s: _moe(s, expert_gating_func=2),
        lambda s, il: (
            parts.attention(s, il, qk_norm=-1) + parts.experts(s, il, n_ff=s.n_ff, selection_bias=True)
        ),
    ),
    "smallthinker": Family(
        "smallthinker",
        lambda s: _moe(s, expert_gating_func=2),
        lambda s, il: parts.attention(s, il) + parts.experts(s, il),
    ),
    "bailingmoe2": Family(
        "bailingmoe2",
        lambda s: _moe(
            s,
            leading_dense_block_count=s.n_dense,
            expert_shared_count=s.n_shared,
            expert_gating_func=2,
            expert_weights_norm=True,
            expert_weights_scale=1.5,
            **_grouped(s),
        ),
        _bailingmoe2_layer,
        default=_FULL_HEADS,
    ),
    "grok": Family(
        "grok",
        lambda s: _moe(s, logit_scale=1.0, embedding_scale=1.0, **{"attention.output_scale": 0.125}),
        _grok_layer,
        default=_FULL_HEADS,
    ),
    "arctic": Family("arctic", _moe, _arctic_layer, default=_FULL_HEADS),
    "dbrx": Family(
        "dbrx",
        lambda s: _moe(s, **{"attention.clamp_kqv": 8.0, "attention.layer_norm_epsilon": 1e-5}),
        lambda s, il: (
            parts.attention(s, il, fused=True)
            + parts.experts(s, il, with_norm="attn_output_norm", n_ff=s.n_ff)
        ),
        default=_FULL_HEADS,
    ),
    "deepseek": Family("deepseek", _shared_moe, _with_shared, default=_FULL_HEADS),
    "dots1": Family(
        "dots1",
        lambda s: _shared_moe(
            s, expert_gating_func=2, expert_weights_norm=True, expert_weights_scale=1.5, **_grouped(s)
        ),
        lambda s, il: _with_shared(s, il, qk_norm=s.head_dim, selection_bias=True),
        default=Shape(n_head_kv=4),
    ),
    "ernie4_5-moe": Family(
        "ernie4_5-moe",
        lambda s: _shared_moe(
            s, interleave_moe_layer_step=1, expert_shared_feed_forward_length=s.n_ff_exp * s.n_shared
        ),
        lambda s, il: _with_shared(s, il, selection_bias=True),
    ),
    "hunyuan-moe": Family(
        "hunyuan-moe", _moe, lambda s, il: _with_shared(s, il, qk_norm=s.head_dim), default=Shape(n_dense=0)
    ),
    "grovemoe": Family(
        "grovemoe",
        lambda s: _moe(s, expert_group_scale=0.5, experts_per_group=2),
        _grovemoe_layer,
        default=Shape(n_expert=6),
    ),
}

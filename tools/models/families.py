"""Define the architectures: each one is metadata and a list of tensors.

To add one, read its `load_arch_hparams` and `load_arch_tensors` in llama.cpp's src/models. Put it together
from `parts`, and register it at the end. Or let the loader describe its tensors (loader_families.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tools.models import parts
from tools.models.parts import Tensor, bias, matrix, norm
from tools.models.shape import Shape

Metadata = dict[str, Any]
Layer = Callable[[Shape, int], list[Tensor]]


@dataclass(frozen=True)
class Family:
    """One architecture: llama.cpp's name for it, its metadata (keys without the architecture's prefix), its
    tensors."""

    architecture: str
    metadata: Callable[[Shape], Metadata]
    layer: Layer
    embedding: Mapping[str, Any] = field(default_factory=dict)
    options: tuple[str, ...] = ()
    default: Shape = field(default_factory=Shape)
    rewinds: bool = True  # tokens can be removed one by one, which a state does not allow
    embeds: bool = False  # gives embeddings, no logits

    def tensors(self, shape: Shape, n_vocab: int) -> list[Tensor]:
        """Return all tensors in file order."""
        embedding = parts.embedding(shape, n_vocab, **self.embedding)
        layers = (self.layer(shape, il) + parts.prediction(shape, il) for il in range(shape.n_layer))
        return [*embedding, *(tensor for layer in layers for tensor in layer)]


# Metadata


def base(s: Shape) -> Metadata:
    """Return the keys that every architecture reads."""
    return {
        "context_length": s.n_ctx, "embedding_length": s.n_embd, "block_count": s.n_layer,
        "feed_forward_length": s.n_ff, "attention.head_count": s.n_head,
        "attention.head_count_kv": s.n_head_kv, "attention.key_length": s.head_dim,
        "attention.value_length": s.head_dim, "attention.layer_norm_rms_epsilon": 1e-6,
        "rope.dimension_count": s.head_dim, "rope.freq_base": 10000.0,
        **({"nextn_predict_layers": s.option("mtp")} if s.option("mtp") else {}),
    }  # fmt: skip


def _moe(s: Shape, **more: Any) -> Metadata:
    return {
        **base(s), "expert_count": s.n_expert, "expert_used_count": s.n_used,
        "expert_feed_forward_length": s.n_ff_exp, **more,
    }  # fmt: skip


def _shared_moe(s: Shape, **more: Any) -> Metadata:
    return _moe(s, leading_dense_block_count=s.n_dense, expert_shared_count=s.n_shared, **more)


def _sigmoid_moe(s: Shape) -> Metadata:
    return _shared_moe(
        s, expert_gating_func=2, expert_weights_norm=True, expert_weights_scale=1.5, **_grouped(s)
    )


def _grouped(s: Shape) -> Metadata:
    if s.n_group == 1:
        return {}
    return {"expert_group_count": s.n_group, "expert_group_used_count": s.n_group_used}


def _width(s: Shape) -> Metadata:
    return {"expert_shared_feed_forward_length": s.n_ff_exp * s.n_shared}


def _deepseek2_metadata(s: Shape) -> Metadata:
    mla, sigmoid = parts.latent_sizes(s), bool(s.option("sigmoid"))
    meta = _shared_moe(
        s, expert_weights_scale=1.5 if sigmoid else 1.0, expert_weights_norm=sigmoid,
        expert_gating_func=2 if sigmoid else 1,
    )  # fmt: skip
    meta |= {"attention.q_lora_rank": mla["q_rank"], "attention.kv_lora_rank": mla["kv_rank"], **_grouped(s)}
    lengths = {"attention.key_length": mla["nope"] + mla["rope"], "attention.value_length": mla["value"]}
    meta |= {**lengths, "rope.dimension_count": mla["rope"], "attention.head_count_kv": s.n_head}
    if mla["absorbed"]:
        meta |= {f"{key}_mla": length for key, length in lengths.items()}
        meta["attention.head_count_kv"] = 1
        meta["attention.key_length"] = mla["kv_rank"] + mla["rope"]
        meta["attention.value_length"] = mla["kv_rank"]
    return meta


def _lfm2moe_metadata(s: Shape) -> Metadata:
    meta = _moe(s, leading_dense_block_count=s.n_dense, expert_gating_func=2)
    meta["attention.head_count_kv"] = [s.n_head_kv * (il % 2) for il in range(s.n_layer)]
    return {**meta, "shortconv.l_cache": L_CACHE}


def _qwen3next_metadata(s: Shape) -> Metadata:
    ssm = {
        "ssm.conv_kernel": CONV, "ssm.inner_size": VALUE_HEADS * STATE, "ssm.state_size": STATE,
        "ssm.time_step_rank": VALUE_HEADS, "ssm.group_count": KEY_HEADS, "full_attention_interval": 2,
    }  # fmt: skip
    return _moe(s, **ssm, **_width(s))


# Layers


def _layer(
    *,
    has_dense: bool = False,
    shared: Mapping[str, Any] | None = None,
    experts: Mapping[str, Any] | None = None,
    **attention: Any,
) -> Layer:
    """Return a maker of layers: attention, then experts with `shared` ones beside them, or in the leading
    layers a dense block if it `has_dense` ones."""

    def make(s: Shape, il: int) -> list[Tensor]:
        tensors = parts.attention(s, il, **attention)
        if has_dense and il < s.n_dense:
            return tensors + parts.dense(s, il)
        tensors += parts.experts(s, il, **(experts or {}))
        return tensors + (parts.shared_expert(s, il, **shared) if shared is not None else [])

    return make


def _dense_layer(**attention: Any) -> Layer:
    return lambda s, il: parts.attention(s, il, **attention) + parts.dense(s, il)


def _deepseek2_layer(s: Shape, il: int) -> list[Tensor]:
    tensors = parts.latent_attention(s, il)
    if il < s.n_dense:
        return tensors + parts.dense(s, il)
    moe = parts.experts(s, il, selection_bias=bool(s.option("sigmoid")))
    return tensors + moe + parts.shared_expert(s, il)


def _glm4moe_layer(s: Shape, il: int) -> list[Tensor]:
    tensors = parts.attention(s, il, qk_norm="head", qkv_bias=True)
    if il < s.n_dense:
        return tensors + parts.dense(s, il, with_norm="post_attention_norm")
    moe = parts.experts(s, il, with_norm="post_attention_norm", selection_bias=True)
    return tensors + moe + parts.shared_expert(s, il)


def _llama4_layer(s: Shape, il: int) -> list[Tensor]:
    is_dense = (il + 1) % s.option("moe_every", 2)
    return (_dense_layer() if is_dense else _layer(shared={}))(replace(s, n_shared=1), il)


def _phimoe_layer(s: Shape, il: int) -> list[Tensor]:
    layer = _layer(experts=_WIDE, qkv_bias=True, out_bias=True, norm_bias=True)
    return [*layer(s, il), bias(f"blk.{il}.ffn_norm", s.n_embd)]


def _grovemoe_layer(s: Shape, il: int) -> list[Tensor]:
    """Return experts, and smaller ones beside them, each for a group of two."""
    p, n = f"blk.{il}.ffn_", s.n_expert // 2
    return [
        *_layer(qk_norm="head")(s, il),
        matrix(p + "gate_chexps", n, s.head_dim, s.n_embd),
        matrix(p + "up_chexps", n, s.head_dim, s.n_embd),
        matrix(p + "down_chexps", n, s.n_embd, s.head_dim, gain=2.0),
    ]


def _grok_layer(s: Shape, il: int) -> list[Tensor]:
    norms = [norm(f"blk.{il}.{name}", s.n_embd) for name in ("attn_output_norm", "layer_output_norm")]
    return [*parts.attention(s, il), *norms, *parts.experts(s, il)]


def _arctic_layer(s: Shape, il: int) -> list[Tensor]:
    """Return experts beside a dense block as wide as the model."""
    beside = _dense_layer()(replace(s, n_ff=s.n_embd), il)
    return [*beside, *parts.experts(s, il, with_norm="ffn_norm_exps", **_WIDE)]


# LFM2 has a short convolution, Qwen3-Next gated delta nets, each in every second layer.
L_CACHE = 3
KEY_HEADS, VALUE_HEADS, STATE, CONV = 2, 4, 32, 4


def _lfm2moe_layer(s: Shape, il: int) -> list[Tensor]:
    p = f"blk.{il}."
    tensors = [
        norm(p + "attn_norm", s.n_embd),
        Tensor(p + "shortconv.conv.weight", (s.n_embd, L_CACHE), "bias", 0.5),
        matrix(p + "shortconv.in_proj", 3 * s.n_embd, s.n_embd),
        matrix(p + "shortconv.out_proj", s.n_embd, s.n_embd),
    ]
    if il % 2:
        tensors = parts.attention(s, il, qk_norm="head")
    return tensors + (parts.dense(s, il) if il < s.n_dense else parts.experts(s, il, selection_bias=True))


def _qwen3next_layer(s: Shape, il: int) -> list[Tensor]:
    p = f"blk.{il}."
    keys, values = KEY_HEADS * STATE, VALUE_HEADS * STATE
    if il % 2 or s.predicts(il):
        query, *rest = parts.attention(s, il, qk_norm="head")[1:]
        tensors = [replace(query, shape=(2 * query.shape[0], s.n_embd)), *rest]  # each output has a gate
    else:
        tensors = [
            matrix(p + "attn_qkv", 2 * keys + values, s.n_embd),
            matrix(p + "attn_gate", values, s.n_embd),
            Tensor(p + "ssm_conv1d.weight", (2 * keys + values, CONV), "bias", 0.5),
            bias(p + "ssm_dt", VALUE_HEADS),
            Tensor(p + "ssm_a", (VALUE_HEADS,), "bias", 0.5),
            matrix(p + "ssm_ba", 2 * VALUE_HEADS, s.n_embd),
            norm(p + "ssm_norm", STATE),
            matrix(p + "ssm_out", s.n_embd, values),
        ]
    moe = parts.experts(s, il, with_norm="post_attention_norm") + parts.shared_expert(s, il, gated=True)
    return [norm(p + "attn_norm", s.n_embd), *tensors, *moe]


# The table

_FULL_HEADS = Shape(n_embd=128, n_head=4, head_dim=32)  # heads together are as wide as the model
_FOUR = Shape(n_layer=4)
_WIDE = {"is_wide": True}
_BIASED = {"selection_bias": True}

FAMILIES: dict[str, Family] = {
    "llama": Family("llama", base, _dense_layer()),
    "qwen3": Family("qwen3", base, _dense_layer(qk_norm="head")),
    "qwen3moe": Family("qwen3moe", _moe, _layer(qk_norm="head"), options=("scales",)),
    "qwen3vlmoe": Family(
        "qwen3vlmoe",
        lambda s: {
            **_moe(s),
            "rope.dimension_sections": [s.head_dim // 8] * 4,
            "n_deepstack_layers": s.option("deepstack"),
        },
        _layer(qk_norm="head"),
        options=("deepstack",),
    ),
    "deepseek2": Family(
        "deepseek2", _deepseek2_metadata, _deepseek2_layer,
        options=("merged", "sigmoid", "q_rank", "kv_rank", "nope", "rope", "value", "absorbed", "mtp"),
    ),
    "gpt-oss": Family(
        "gpt-oss",
        lambda s: _moe(s, **{"attention.sliding_window": s.n_swa}),
        _layer(
            qkv_bias=True, out_bias=True, sinks=True,
            experts={"with_norm": "post_attention_norm", "biases": True},
        ),
        default=Shape(types={"*_exps": "MXFP4"}),
    ),
    "mixtral": Family("llama", _moe, _layer(experts=_WIDE)),
    "olmoe": Family(
        "olmoe", _moe, _layer(qk_norm="all", experts=_WIDE), default=Shape(n_embd=128, n_head_kv=4)
    ),
    "qwen2moe": Family(
        "qwen2moe", lambda s: _moe(s, **_width(s)), _layer(qkv_bias=True, shared={"gated": True}),
        default=_FULL_HEADS,
    ),
    "glm4moe": Family(
        "glm4moe",
        lambda s: _moe(
            s, expert_shared_count=s.n_shared, leading_dense_block_count=s.n_dense, expert_weights_scale=1.5,
            expert_weights_norm=True,
        ),
        _glm4moe_layer,
        options=("mtp",),
    ),
    "phimoe": Family("phimoe", _moe, _phimoe_layer, embedding={"biases": True}, default=_FULL_HEADS),
    "llama4": Family(
        "llama4", lambda s: _moe(s, interleave_moe_layer_step=s.option("moe_every", 2)), _llama4_layer,
        options=("moe_every",), default=Shape(n_layer=4, n_used=1),
    ),
    "granitemoe": Family(
        "granitemoe",
        lambda s: _moe(
            s, logit_scale=2.0, residual_scale=0.5, embedding_scale=1.5, **_width(s),
            **{"attention.scale": 0.125},
        ),
        _layer(shared={}, experts=_WIDE),
        options=("gateless",),
    ),
    "minimax-m2": Family(
        "minimax-m2", lambda s: _moe(s, expert_gating_func=2),
        _layer(qk_norm="all", experts={**_WIDE, **_BIASED}),
    ),
    "smallthinker": Family("smallthinker", lambda s: _moe(s, expert_gating_func=2), _layer()),
    "bailingmoe2": Family(
        "bailingmoe2", _sigmoid_moe,
        _layer(has_dense=True, shared={}, experts=_BIASED, qk_norm="head", fused=True), default=_FULL_HEADS,
    ),
    "grok": Family(
        "grok", lambda s: _moe(s, logit_scale=1.0, embedding_scale=1.0, **{"attention.output_scale": 0.125}),
        _grok_layer, default=_FULL_HEADS,
    ),
    "arctic": Family("arctic", _moe, _arctic_layer, default=_FULL_HEADS),
    "dbrx": Family(
        "dbrx", lambda s: _moe(s, **{"attention.clamp_kqv": 8.0, "attention.layer_norm_epsilon": 1e-5}),
        _layer(fused=True, experts={"with_norm": "attn_output_norm", **_WIDE}), default=_FULL_HEADS,
    ),
    "deepseek": Family("deepseek", _shared_moe, _layer(has_dense=True, shared={}), default=_FULL_HEADS),
    "dots1": Family(
        "dots1", _sigmoid_moe, _layer(has_dense=True, shared={}, experts=_BIASED, qk_norm="head"),
        default=Shape(n_head_kv=4),
    ),
    "ernie4_5-moe": Family(
        "ernie4_5-moe", lambda s: _shared_moe(s, interleave_moe_layer_step=1, **_width(s)),
        _layer(has_dense=True, shared={}, experts=_BIASED),
    ),
    "hunyuan-moe": Family(
        "hunyuan-moe", _moe, _layer(has_dense=True, shared={}, qk_norm="head"), default=Shape(n_dense=0)
    ),
    "grovemoe": Family(
        "grovemoe", lambda s: _moe(s, expert_group_scale=0.5, experts_per_group=2), _grovemoe_layer,
        default=Shape(n_expert=6),
    ),
    "lfm2moe": Family(
        "lfm2moe", _lfm2moe_metadata, _lfm2moe_layer, embedding={"norm_name": "token_embd_norm"},
        rewinds=False, default=Shape(n_layer=4, n_embd=128, n_head=4, head_dim=32),
    ),
    "qwen3next": Family(
        "qwen3next", _qwen3next_metadata, _qwen3next_layer, rewinds=False, default=_FOUR, options=("mtp",)
    ),
}  # fmt: skip

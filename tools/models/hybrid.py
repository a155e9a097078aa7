"""Define architectures with experts and with layers whose memory is a state: no token can be removed from
it."""

from __future__ import annotations

from tools.models import parts
from tools.models.families import Family, Metadata, _base
from tools.models.parts import Tensor, bias, matrix, norm
from tools.models.shape import Shape

# LFM2 has a short convolution, Qwen3-Next gated delta nets.
L_CACHE = 3
KEY_HEADS, VALUE_HEADS, STATE, CONV = 2, 4, 32, 4


def _is_attention(s: Shape, il: int) -> bool:
    """Return True for every second layer."""
    return il % 2 == 1


def _experts_metadata(s: Shape) -> Metadata:
    return {
        "expert_count": s.n_expert,
        "expert_used_count": s.n_used,
        "expert_feed_forward_length": s.n_ff_exp,
    }


def _lfm2moe_metadata(s: Shape) -> Metadata:
    meta = _base(s, **_experts_metadata(s), leading_dense_block_count=s.n_dense, expert_gating_func=2)
    meta["attention.head_count_kv"] = [s.n_head_kv * _is_attention(s, il) for il in range(s.n_layer)]
    meta["shortconv.l_cache"] = L_CACHE
    return meta


def _lfm2moe_layer(s: Shape, il: int) -> list[Tensor]:
    p = f"blk.{il}."
    if _is_attention(s, il):
        tensors = parts.attention(s, il, qk_norm=s.head_dim)
    else:
        tensors = [
            norm(p + "attn_norm", s.n_embd),
            Tensor(p + "shortconv.conv.weight", (s.n_embd, L_CACHE), "bias", 0.5),
            matrix(p + "shortconv.in_proj", 3 * s.n_embd, s.n_embd),
            matrix(p + "shortconv.out_proj", s.n_embd, s.n_embd),
        ]
    block = parts.dense(s, il) if il < s.n_dense else parts.experts(s, il, selection_bias=True)
    return tensors + block


def _qwen3next_metadata(s: Shape) -> Metadata:
    ssm = {
        "ssm.conv_kernel": CONV,
        "ssm.inner_size": VALUE_HEADS * STATE,
        "ssm.state_size": STATE,
        "ssm.time_step_rank": VALUE_HEADS,
        "ssm.group_count": KEY_HEADS,
        "full_attention_interval": 2,
        "expert_shared_feed_forward_length": s.n_ff_exp * s.n_shared,
    }
    return _base(s, **_experts_metadata(s), **ssm)


def _qwen3next_layer(s: Shape, il: int) -> list[Tensor]:
    p = f"blk.{il}."
    keys, values = KEY_HEADS * STATE, VALUE_HEADS * STATE
    if _is_attention(s, il):
        n_q, n_kv = s.n_head * s.head_dim, s.n_head_kv * s.head_dim
        tensors = [
            matrix(p + "attn_q", 2 * n_q, s.n_embd),  # each output has a gate
            matrix(p + "attn_k", n_kv, s.n_embd),
            matrix(p + "attn_v", n_kv, s.n_embd),
            matrix(p + "attn_output", s.n_embd, n_q),
            norm(p + "attn_q_norm", s.head_dim),
            norm(p + "attn_k_norm", s.head_dim),
        ]
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


HYBRIDS: dict[str, Family] = {
    "lfm2moe": Family(
        "lfm2moe",
        _lfm2moe_metadata,
        _lfm2moe_layer,
        embedding={"norm_name": "token_embd_norm"},
        rewinds=False,
        default=Shape(n_layer=4, n_embd=128, n_head=4, head_dim=32),
    ),
    "qwen3next": Family(
        "qwen3next", _qwen3next_metadata, _qwen3next_layer, rewinds=False, default=Shape(n_layer=4)
    ),
}

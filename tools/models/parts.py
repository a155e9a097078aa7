"""Provide the parts of architectures: lists of tensors with their shapes and how to fill them.

Shapes have numpy's order, rows last (the reverse of ggml's `ne`): a matrix is (outputs, inputs).
"""

from __future__ import annotations

from dataclasses import dataclass

from tools.models.shape import Shape


@dataclass(frozen=True)
class Tensor:
    """One tensor of a model. For a matrix (kind "matrix"), `gain` is the standard deviation of its output per
    unit of input. For a "bias" it is that of the numbers themselves. A "norm" lies around 1, a "decay" around
    -1. "ids" are rows of different experts."""

    name: str
    shape: tuple[int, ...]
    kind: str = "matrix"
    gain: float = 1.0


def matrix(name: str, *shape: int, gain: float = 1.0) -> Tensor:
    return Tensor(name + ".weight", shape, "matrix", gain)


def norm(name: str, size: int) -> Tensor:
    return Tensor(name + ".weight", (size,), "norm")


def bias(name: str, *shape: int, gain: float = 0.2) -> Tensor:
    return Tensor(name + ".bias", shape, "bias", gain)


def embedding(
    s: Shape, n_vocab: int, *, output: bool = True, biases: bool = False, norm_name: str = "output_norm"
) -> list[Tensor]:
    """Return token embedding, final norm and, unless tied to the embedding, the output matrix."""
    tensors = [Tensor("token_embd.weight", (n_vocab, s.n_embd), "embedding"), norm(norm_name, s.n_embd)]
    if output:
        tensors.append(matrix("output", n_vocab, s.n_embd, gain=3.0))
    if biases:
        tensors += [bias("output_norm", s.n_embd), bias("output", n_vocab)]
    return tensors


def attention(
    s: Shape,
    il: int,
    *,
    qk_norm: int = 0,
    qkv_bias: bool = False,
    out_bias: bool = False,
    norm_bias: bool = False,
    sinks: bool = False,
    fused: bool = False,
) -> list[Tensor]:
    """Return grouped-query attention with its norm before. `qk_norm` is the size of the norms on queries and
    keys, if any. For norms over all heads together use -1."""
    p = f"blk.{il}."
    n_q, n_kv = s.n_head * s.head_dim, s.n_head_kv * s.head_dim
    rows = {"attn_qkv": n_q + 2 * n_kv} if fused else {"attn_q": n_q, "attn_k": n_kv, "attn_v": n_kv}
    tensors = [
        norm(p + "attn_norm", s.n_embd),
        *(matrix(p + name, n, s.n_embd) for name, n in rows.items()),
        matrix(p + "attn_output", s.n_embd, n_q),
    ]
    if qk_norm:
        tensors.append(norm(p + "attn_q_norm", qk_norm if qk_norm > 0 else n_q))
        tensors.append(norm(p + "attn_k_norm", qk_norm if qk_norm > 0 else n_kv))
    if qkv_bias:
        tensors += [bias(p + name, n) for name, n in rows.items()]
    if out_bias:
        tensors.append(bias(p + "attn_output", s.n_embd))
    if norm_bias:
        tensors.append(bias(p + "attn_norm", s.n_embd))
    if sinks:
        tensors.append(Tensor(p + "attn_sinks.weight", (s.n_head,), "bias", 1.0))
    return tensors


def latent_attention(s: Shape, il: int, mla: LatentSizes) -> list[Tensor]:
    """Return DeepSeek's multi-head latent attention, absorbed (k_b and v_b) or as old files have it
    (kv_b)."""
    p = f"blk.{il}."
    head_k = mla.nope + mla.rope
    tensors = [
        norm(p + "attn_norm", s.n_embd),
        norm(p + "attn_kv_a_norm", mla.kv_rank),
        matrix(p + "attn_kv_a_mqa", mla.kv_rank + mla.rope, s.n_embd),
        matrix(p + "attn_output", s.n_embd, s.n_head * mla.value),
    ]
    if mla.q_rank:
        tensors += [
            norm(p + "attn_q_a_norm", mla.q_rank),
            matrix(p + "attn_q_a", mla.q_rank, s.n_embd),
            matrix(p + "attn_q_b", s.n_head * head_k, mla.q_rank),
        ]
    else:
        tensors.append(matrix(p + "attn_q", s.n_head * head_k, s.n_embd))
    if mla.absorbed:
        tensors += [
            matrix(p + "attn_k_b", s.n_head, mla.kv_rank, mla.nope),
            matrix(p + "attn_v_b", s.n_head, mla.value, mla.kv_rank),
        ]
    else:
        tensors.append(matrix(p + "attn_kv_b", s.n_head * (mla.nope + mla.value), mla.kv_rank))
    return tensors


@dataclass(frozen=True)
class LatentSizes:
    """Sizes of multi-head latent attention. With the defaults, rows are whole numbers of 32-blocks."""

    q_rank: int = 0
    kv_rank: int = 32
    nope: int = 32
    rope: int = 16
    value: int = 32
    absorbed: bool = True


def dense(s: Shape, il: int, *, with_norm: str = "ffn_norm") -> list[Tensor]:
    """Return a gated feed-forward block with the norm before it."""
    p = f"blk.{il}."
    return [
        norm(p + with_norm, s.n_embd),
        matrix(p + "ffn_gate", s.n_ff, s.n_embd),
        matrix(p + "ffn_up", s.n_ff, s.n_embd),
        matrix(p + "ffn_down", s.n_embd, s.n_ff),
    ]


def experts(
    s: Shape,
    il: int,
    *,
    with_norm: str = "ffn_norm",
    n_ff: int = 0,
    merged: bool = False,
    biases: bool = False,
    selection_bias: bool = False,
    gateless: bool = False,
    scales: bool = False,
) -> list[Tensor]:
    """Return router and experts with the norm before them. `merged`: gate and up in one tensor; `gateless`:
    two matrices; `scales`: every expert and matrix has a number that its output is multiplied with."""
    p = f"blk.{il}."
    n_ff = n_ff or s.n_ff_exp
    # The router's logits are large. With small logits all experts weigh the same, and a wrong one is hard to
    # see.
    tensors = [
        norm(p + with_norm, s.n_embd),
        Tensor(p + "ffn_gate_inp.weight", (s.n_expert, s.n_embd), "router", 1.5),
    ]
    if merged:
        tensors.append(matrix(p + "ffn_gate_up_exps", s.n_expert, 2 * n_ff, s.n_embd))
    else:
        names: tuple[str, ...] = ("ffn_up_exps",) if gateless else ("ffn_gate_exps", "ffn_up_exps")
        tensors += [matrix(p + name, s.n_expert, n_ff, s.n_embd) for name in names]
    tensors.append(matrix(p + "ffn_down_exps", s.n_expert, s.n_embd, n_ff, gain=2.0))
    if scales:
        names = ("ffn_gate_exps", "ffn_up_exps", "ffn_down_exps")
        tensors += [Tensor(f"{p}{name}.scale", (s.n_expert,), "norm") for name in names]
    if biases:
        tensors += [
            bias(p + "ffn_gate_inp", s.n_expert),
            bias(p + "ffn_gate_exps", s.n_expert, n_ff),
            bias(p + "ffn_up_exps", s.n_expert, n_ff),
            bias(p + "ffn_down_exps", s.n_expert, s.n_embd),
        ]
    if selection_bias:
        tensors.append(bias(p + "exp_probs_b", s.n_expert, gain=0.05))
    return tensors


def shared_expert(s: Shape, il: int, *, n_ff: int = 0, gated: bool = False) -> list[Tensor]:
    """Return an expert that every token uses. `gated`: a gate of its own weights it."""
    p = f"blk.{il}."
    n_ff = n_ff or s.n_ff_exp * s.n_shared
    tensors = [
        matrix(p + "ffn_gate_shexp", n_ff, s.n_embd),
        matrix(p + "ffn_up_shexp", n_ff, s.n_embd),
        matrix(p + "ffn_down_shexp", s.n_embd, n_ff),
    ]
    if gated:
        tensors.append(Tensor(p + "ffn_gate_inp_shexp.weight", (s.n_embd,), "bias", 0.1))
    return tensors


def prediction(s: Shape, il: int) -> list[Tensor]:
    """Return the tensors of a layer of multi-token prediction."""
    p = f"blk.{il}.nextn."
    return [
        matrix(p + "eh_proj", s.n_embd, 2 * s.n_embd),
        norm(p + "enorm", s.n_embd),
        norm(p + "hnorm", s.n_embd),
    ]

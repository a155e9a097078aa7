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
    s: Shape, n_vocab: int, *, biases: bool = False, norm_name: str = "output_norm"
) -> list[Tensor]:
    """Return token embedding, final norm and the output matrix."""
    tensors = [
        Tensor("token_embd.weight", (n_vocab, s.n_embd), "embedding"),
        norm(norm_name, s.n_embd),
        matrix("output", n_vocab, s.n_embd, gain=3.0),
    ]
    return tensors + ([bias("output_norm", s.n_embd), bias("output", n_vocab)] if biases else [])


def attention(
    s: Shape, il: int, *, qk_norm: str = "", qkv_bias: bool = False, out_bias: bool = False,
    norm_bias: bool = False, sinks: bool = False, fused: bool = False,
) -> list[Tensor]:  # fmt: skip
    """Return grouped-query attention with its norm before. `qk_norm`: queries and keys have norms over a
    "head", or over "all" heads together."""
    p = f"blk.{il}."
    n_q, n_kv = s.n_head * s.head_dim, s.n_head_kv * s.head_dim
    rows = {"attn_qkv": n_q + 2 * n_kv} if fused else {"attn_q": n_q, "attn_k": n_kv, "attn_v": n_kv}
    tensors = [
        norm(p + "attn_norm", s.n_embd),
        *(matrix(p + name, n, s.n_embd) for name, n in rows.items()),
        matrix(p + "attn_output", s.n_embd, n_q),
    ]
    if qk_norm:
        of_head = qk_norm == "head"
        tensors.append(norm(p + "attn_q_norm", s.head_dim if of_head else n_q))
        tensors.append(norm(p + "attn_k_norm", s.head_dim if of_head else n_kv))
    if qkv_bias:
        tensors += [bias(p + name, n) for name, n in rows.items()]
    if out_bias:
        tensors.append(bias(p + "attn_output", s.n_embd))
    if norm_bias:
        tensors.append(bias(p + "attn_norm", s.n_embd))
    if sinks:
        tensors.append(Tensor(p + "attn_sinks.weight", (s.n_head,), "bias", 1.0))
    return tensors


_LATENT = {"q_rank": 0, "kv_rank": 32, "nope": 32, "rope": 16, "value": 32, "absorbed": 1}
"""Sizes of multi-head latent attention. With these, rows are whole numbers of 32-blocks."""


def latent_sizes(s: Shape) -> dict[str, int]:
    defaults = {**_LATENT, "q_rank": 32 * bool(s.option("mtp"))}  # A prediction layer has to have a rank.
    return {name: s.option(name, default) for name, default in defaults.items()}


def latent_attention(s: Shape, il: int) -> list[Tensor]:
    """Return DeepSeek's multi-head latent attention, absorbed (k_b and v_b) or as old files have it
    (kv_b)."""
    p, (q_rank, kv_rank, nope, rope, value, absorbed) = f"blk.{il}.", latent_sizes(s).values()
    head_k = nope + rope
    tensors = [
        norm(p + "attn_norm", s.n_embd),
        norm(p + "attn_kv_a_norm", kv_rank),
        matrix(p + "attn_kv_a_mqa", kv_rank + rope, s.n_embd),
        matrix(p + "attn_output", s.n_embd, s.n_head * value),
    ]
    if q_rank:
        tensors += [
            norm(p + "attn_q_a_norm", q_rank),
            matrix(p + "attn_q_a", q_rank, s.n_embd),
            matrix(p + "attn_q_b", s.n_head * head_k, q_rank),
        ]
    else:
        tensors.append(matrix(p + "attn_q", s.n_head * head_k, s.n_embd))
    if not absorbed:
        return [*tensors, matrix(p + "attn_kv_b", s.n_head * (nope + value), kv_rank)]
    keys, values = (s.n_head, kv_rank, nope), (s.n_head, value, kv_rank)
    return [*tensors, matrix(p + "attn_k_b", *keys), matrix(p + "attn_v_b", *values)]


def dense(s: Shape, il: int, *, with_norm: str = "ffn_norm") -> list[Tensor]:
    """Return a gated feed-forward block with the norm before it."""
    return [norm(f"blk.{il}.{with_norm}", s.n_embd), *_gated(s, il, s.n_ff, "")]


def _gated(s: Shape, il: int, n_ff: int, end: str) -> list[Tensor]:
    p = f"blk.{il}.ffn_"
    inner = [matrix(f"{p}{name}{end}", n_ff, s.n_embd) for name in ("gate", "up")]
    return [*inner, matrix(f"{p}down{end}", s.n_embd, n_ff)]


def experts(
    s: Shape, il: int, *, with_norm: str = "ffn_norm", is_wide: bool = False, biases: bool = False,
    selection_bias: bool = False,
) -> list[Tensor]:  # fmt: skip
    """Return router and experts with the norm before them. `is_wide`: they have a dense block's width. A
    family's options are "merged" (gate and up in one tensor), "gateless" (two matrices) and "scales" (every
    expert and matrix has a number that its output is multiplied with)."""
    p, n_ff = f"blk.{il}.", s.n_ff if is_wide else s.n_ff_exp
    # The router's logits are large. With small logits all experts weigh the same, and a wrong one is hard to
    # see.
    tensors = [
        norm(p + with_norm, s.n_embd),
        Tensor(p + "ffn_gate_inp.weight", (s.n_expert, s.n_embd), "router", 1.5),
    ]
    inner = {"ffn_gate_exps": n_ff, "ffn_up_exps": n_ff}
    if s.option("merged"):
        inner = {"ffn_gate_up_exps": 2 * n_ff}
    elif s.option("gateless"):
        del inner["ffn_gate_exps"]
    tensors += [matrix(p + name, s.n_expert, n, s.n_embd) for name, n in inner.items()]
    tensors.append(matrix(p + "ffn_down_exps", s.n_expert, s.n_embd, n_ff, gain=2.0))
    rows = {**inner, "ffn_down_exps": s.n_embd}
    if s.option("scales"):
        tensors += [Tensor(f"{p}{name}.scale", (s.n_expert,), "norm") for name in rows]
    if biases:
        tensors.append(bias(p + "ffn_gate_inp", s.n_expert))
        tensors += [bias(p + name, s.n_expert, n) for name, n in rows.items()]
    if selection_bias:
        tensors.append(bias(p + "exp_probs_b", s.n_expert, gain=0.05))
    return tensors


def shared_expert(s: Shape, il: int, *, gated: bool = False) -> list[Tensor]:
    """Return an expert that every token uses. `gated`: a gate of its own weights it."""
    tensors = _gated(s, il, s.n_ff_exp * s.n_shared, "_shexp")
    return tensors + [Tensor(f"blk.{il}.ffn_gate_inp_shexp.weight", (s.n_embd,), "bias", 0.1)] * gated


def prediction(s: Shape, il: int) -> list[Tensor]:
    """Return the tensors that a layer of multi-token prediction has more than others; none for others."""
    p = f"blk.{il}.nextn."
    matrices = [matrix(p + "eh_proj", s.n_embd, 2 * s.n_embd)]
    return [*matrices, norm(p + "enorm", s.n_embd), norm(p + "hnorm", s.n_embd)] if s.predicts(il) else []

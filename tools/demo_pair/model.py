"""Define the two models in torch, in the exact form of llama.cpp's ``qwen3moe`` and ``qwen3``."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from .data import CONTEXT_LENGTH, VOCAB_SIZE

COMPUTE_TYPE = torch.bfloat16
WIDTH, HEADS, KV_HEADS, HEAD_DIM = 256, 4, 2, 64
QKV_SIZES = [HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM]
ROPE_BASE, NORM_EPS = 10_000.0, 1e-6


@dataclass(frozen=True)
class Form:
    """The differences between the models. ``experts == 0`` means a dense feed-forward of ``ffn`` rows."""

    layers: int
    ffn: int
    experts: int = 0
    experts_used: int = 0

    @property
    def architecture(self) -> str:
        """Return llama.cpp's name for this form."""
        return "qwen3moe" if self.experts else "qwen3"


TARGET = Form(layers=5, ffn=128, experts=32, experts_used=4)
DRAFT = Form(layers=2, ffn=512)


@dataclass
class Routing:
    """The routers' outputs in one forward pass, layer by layer: logits [N, E] and chosen experts [N, k]."""

    logits: list[Tensor] = field(default_factory=list)
    chosen: list[Tensor] = field(default_factory=list)


Cache = dict[int, tuple[Tensor, Tensor]]
"""Keys and values [B, G, T, D] by layer."""


class LanguageModel:
    """Weights by llama.cpp's names. Queries, keys and values are one matrix, which the export splits."""

    def __init__(self, form: Form, weights: dict[str, Tensor] | None = None) -> None:
        self.form, self.weights = form, weights or _fresh(form)
        half = HEAD_DIM // 2
        angle = torch.arange(CONTEXT_LENGTH).unsqueeze(1) * ROPE_BASE ** (-torch.arange(half) / half)
        self.rotation = angle.cos(), angle.sin()

    @classmethod
    def load(cls, path: Path) -> tuple[LanguageModel, dict[str, Any]]:
        """Return the model of a checkpoint, and everything that was saved beside it."""
        state: dict[str, Any] = torch.load(path, weights_only=True)
        return cls(Form(**state["form"]), state["weights"]), state

    def features(
        self, tokens: Tensor, cache: Cache | None = None, dtype: torch.dtype = COMPUTE_TYPE
    ) -> tuple[Tensor, Routing]:
        """Return the normalised last hidden state [B, T, d] and the routers' outputs. A cache that is not
        empty takes one token more."""
        (batch, length), routing, form = tokens.shape, Routing(), self.form
        start = cache[0][0].shape[2] if cache else 0
        rotation = [part[start : start + length].to(dtype) for part in self.rotation]
        x = functional.embedding(tokens, self.weights["token_embd"])
        for layer in range(form.layers):
            w = {name: self.weights[f"blk.{layer}.{name}"] for name in shapes(form)}
            x = x + attention(_norm(x, w["attn_norm"]).to(dtype), w, rotation, cache, layer)
            flat = _norm(x, w["ffn_norm"]).to(dtype).view(batch * length, -1)
            if form.experts:
                y = experts(flat, w, form.experts_used, routing)
            else:
                y = feed_forward(flat, *(w[f"ffn_{name}"].to(dtype) for name in ("gate", "up", "down")))
            x = x + y.view(batch, length, -1)
        return _norm(x, self.weights["output_norm"]).to(dtype), routing

    def scores(self, features: Tensor) -> Tensor:
        """Return the scores of the next token, in float32."""
        return functional.linear(features, self.weights["output"].to(features.dtype)).float()


def shapes(form: Form) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a layer's weights by name."""
    lead, end = ((form.experts,), "_exps") if form.experts else ((), "")
    return {
        "attn_norm": (WIDTH,), "attn_qkv": (sum(QKV_SIZES), WIDTH), "attn_q_norm": (HEAD_DIM,),
        "attn_k_norm": (HEAD_DIM,), "attn_output": (WIDTH, HEADS * HEAD_DIM), "ffn_norm": (WIDTH,),
        **({"ffn_gate_inp": (form.experts, WIDTH)} if form.experts else {}),
        f"ffn_gate{end}": (*lead, form.ffn, WIDTH), f"ffn_up{end}": (*lead, form.ffn, WIDTH),
        f"ffn_down{end}": (*lead, WIDTH, form.ffn),
    }  # fmt: skip


def _fresh(form: Form) -> dict[str, Tensor]:
    """Return new weights. Output projections are zero: at first a block adds nothing, and the token's own
    embedding stays readable."""
    weights = {
        "token_embd": torch.randn(VOCAB_SIZE, WIDTH), "output": torch.randn(VOCAB_SIZE, WIDTH) * 0.02,
        "output_norm": torch.ones(WIDTH),
    }  # fmt: skip
    for layer in range(form.layers):
        for name, shape in shapes(form).items():
            if name.endswith("norm"):
                value = torch.ones(shape)
            elif name.startswith(("attn_output", "ffn_down")):
                value = torch.zeros(shape)
            else:
                value = torch.randn(shape) * (0.02 if name == "ffn_gate_inp" else shape[-1] ** -0.5)
            weights[f"blk.{layer}.{name}"] = value
    return weights


def _norm(x: Tensor, weight: Tensor) -> Tensor:
    return functional.rms_norm(x, weight.shape, weight.to(x.dtype), NORM_EPS)


def attention(
    x: Tensor, w: dict[str, Tensor], rotation: list[Tensor], cache: Cache | None, layer: int
) -> Tensor:
    """Attend from ``x`` [B, T, d] to itself and to the contents of ``cache``: grouped queries, normalised
    queries and keys, NEOX rotation."""
    batch, length, _ = x.shape
    heads = functional.linear(x, w["attn_qkv"].to(x.dtype)).view(batch, length, -1, HEAD_DIM).transpose(1, 2)
    q, k, v = heads.split([HEADS, KV_HEADS, KV_HEADS], dim=1)
    q, k = _rotate(_norm(q, w["attn_q_norm"]), rotation), _rotate(_norm(k, w["attn_k_norm"]), rotation)
    if cache is not None:
        if layer in cache:
            k, v = (torch.cat(pair, dim=2) for pair in zip(cache[layer], (k, v), strict=True))
        cache[layer] = k, v
    # Plain products are on a CPU three times as fast as torch's fused attention with its backward pass.
    rows, keys, values = (each.reshape(batch * KV_HEADS, -1, HEAD_DIM) for each in (q, k, v))
    hidden = torch.full((length, keys.shape[1]), float("-inf"), dtype=x.dtype)
    hidden = hidden.triu(1 + keys.shape[1] - length).repeat(HEADS // KV_HEADS, 1)
    scores = torch.baddbmm(hidden.unsqueeze(0), rows, keys.mT, alpha=HEAD_DIM**-0.5)
    y = (scores.softmax(-1) @ values).view(batch, HEADS, length, HEAD_DIM)
    y = y.transpose(1, 2).reshape(batch, length, -1)
    return functional.linear(y, w["attn_output"].to(x.dtype))


def _rotate(x: Tensor, rotation: list[Tensor]) -> Tensor:
    cos, sin = rotation
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def feed_forward(x: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    """Apply a SwiGLU feed-forward to [N, d]."""
    return (functional.silu(x @ gate.T) * (x @ up.T)) @ down.T


def experts(x: Tensor, w: dict[str, Tensor], used: int, routing: Routing) -> Tensor:
    """Apply the best experts of a softmax over all to [N, d], with weights that are normalised to one.

    Each expert has its products over the tokens sorted by expert. On a CPU this is faster than batched or
    grouped products.
    """
    logits = functional.linear(x.float(), w["ffn_gate_inp"])
    best, chosen = logits.softmax(-1).topk(used, dim=-1)
    routing.logits.append(logits)
    routing.chosen.append(chosen)
    order = chosen.flatten().argsort(stable=True)
    counts = chosen.flatten().bincount(minlength=logits.shape[1]).tolist()
    rows = x.index_select(0, order // used).split(counts)
    matrices = [w[f"ffn_{name}_exps"].to(x.dtype).unbind() for name in ("gate", "up", "down")]
    out = torch.cat([feed_forward(*each) for each in zip(rows, *matrices, strict=True)])
    share = (best / best.sum(-1, keepdim=True)).to(x.dtype)
    return (out.index_select(0, order.argsort()).view(len(x), used, -1) * share.unsqueeze(-1)).sum(1)

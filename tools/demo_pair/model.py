"""Define the two models in torch, in the exact form of llama.cpp's ``qwen3moe`` and ``qwen3``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from .config import ModelConfig

COMPUTE_TYPE = torch.bfloat16


@dataclass
class Routing:
    """The routers' outputs in one forward pass, layer by layer."""

    probabilities: list[Tensor] = field(default_factory=list)
    chosen: list[Tensor] = field(default_factory=list)
    logits: list[Tensor] = field(default_factory=list)


@dataclass
class Cache:
    """Keys and values of all layers for ``length`` tokens."""

    keys: Tensor
    values: Tensor
    length: int = 0

    @classmethod
    def empty(cls, config: ModelConfig, batch: int, capacity: int, dtype: torch.dtype) -> Cache:
        """Return a cache that holds ``capacity`` tokens of ``batch`` sequences."""
        shape = (config.layers, batch, config.kv_heads, capacity, config.head_dim)
        return cls(torch.zeros(shape, dtype=dtype), torch.zeros(shape, dtype=dtype))


class Norm(nn.Module):
    """RMSNorm that computes in float32."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last dimension."""
        return functional.rms_norm(x, (x.shape[-1],), self.weight.to(x.dtype), self.eps)


def _matrix(rows: int, columns: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(rows, columns) / columns**0.5)


def _silent_matrix(*shape: int) -> nn.Parameter:
    """Return zeros. At first a block adds nothing, and the token's own embedding stays readable."""
    return nn.Parameter(torch.zeros(shape))


class Attention(nn.Module):
    """Grouped-query attention with normalised queries and keys and NEOX rotation."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        rows = (config.heads + 2 * config.kv_heads) * config.head_dim
        self.qkv = _matrix(rows, config.width)
        self.out = _silent_matrix(config.width, config.heads * config.head_dim)
        self.q_norm = Norm(config.head_dim, config.norm_eps)
        self.k_norm = Norm(config.head_dim, config.norm_eps)

    def forward(self, x: Tensor, rotation: tuple[Tensor, Tensor], cache: Cache | None, layer: int) -> Tensor:
        """Attend from ``x`` [B, T, d] to itself and to the contents of ``cache``."""
        c, (batch, length, _) = self.config, x.shape
        dtype = x.dtype
        heads = functional.linear(x, self.qkv.to(dtype)).view(batch, length, -1, c.head_dim).transpose(1, 2)
        q, k, v = heads.split([c.heads, c.kv_heads, c.kv_heads], dim=1)
        q, k = rotate(self.q_norm(q), rotation), rotate(self.k_norm(k), rotation)
        if cache is not None:
            end = cache.length + length
            cache.keys[layer, :, :, cache.length : end] = k
            cache.values[layer, :, :, cache.length : end] = v
            k, v = cache.keys[layer, :, :, :end], cache.values[layer, :, :, :end]
        if length > 1 and k.shape[2] != length:
            raise ValueError("a chunk of several tokens needs an empty cache")
        y = attend(q, k, v)
        return functional.linear(y.transpose(1, 2).reshape(batch, length, -1), self.out.to(dtype))


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Compute causal attention of [B, H, T, D] to [B, G, S, D], with either T = S or T = 1.

    Plain products are on a CPU three times as fast as torch's fused attention with its backward pass.
    """
    batch, heads, length, dim = q.shape
    groups = k.shape[1]
    rows = q.reshape(batch * groups, -1, dim)
    keys, values = k.reshape(batch * groups, -1, dim), v.reshape(batch * groups, -1, dim)
    hidden = torch.full((length, keys.shape[1]), float("-inf"), dtype=q.dtype).triu(
        1 + keys.shape[1] - length
    )
    scores = torch.baddbmm(hidden.repeat(heads // groups, 1).unsqueeze(0), rows, keys.mT, alpha=dim**-0.5)
    return (scores.softmax(-1) @ values).view(batch, heads, length, dim)


def rotate(x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Apply rotary position embedding of the NEOX kind to [B, H, T, head_dim]."""
    cos, sin = rotation
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


class DenseFeedForward(nn.Module):
    """A SwiGLU feed-forward."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate_up = _matrix(2 * config.ffn, config.width)
        self.down = _silent_matrix(config.width, config.ffn)

    def forward(self, x: Tensor, routing: Routing) -> Tensor:
        """Apply to [N, d]. ``routing`` does not change."""
        gate, up = functional.linear(x, self.gate_up.to(x.dtype)).chunk(2, dim=-1)
        return functional.linear(functional.silu(gate) * up, self.down.to(x.dtype))


def silu_backward(gate: Tensor) -> tuple[Tensor, Tensor]:
    """Return ``silu(gate)`` and its derivative."""
    sigmoid = torch.sigmoid(gate)
    value = gate * sigmoid
    return value, sigmoid + value * (1 - sigmoid)


def _bounds(counts: Tensor) -> list[tuple[int, int, int]]:
    """Return (expert, first row, last row) of every expert that has rows."""
    result, start = [], 0
    for expert, count in enumerate(counts.tolist()):
        if count:
            result.append((expert, start, start + count))
        start += count
    return result


class ExpertFeedForward(torch.autograd.Function):
    """SwiGLU of the chosen experts, weighted by the router and summed per token.

    It has one matrix product per expert over the tokens sorted by expert. On a CPU this loop is faster than
    batched or grouped products. The backward pass is written by hand, so that autograd copies no slices.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, chosen: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
        """Compute the output from ``x`` [N, d], ``weight``/``chosen`` [N, k], ``gate_up`` [E, 2f, d],
        ``down`` [E, d, f]."""
        used = chosen.shape[1]
        flat = chosen.reshape(-1)
        order = torch.argsort(flat, stable=True)
        token = torch.div(order, used, rounding_mode="floor")
        bounds = _bounds(torch.bincount(flat, minlength=gate_up.shape[0]))
        place = torch.empty_like(order)
        place[order] = torch.arange(order.numel())
        rows = x.index_select(0, token)
        both = rows.new_empty(rows.shape[0], gate_up.shape[1])
        for expert, first, last in bounds:
            torch.mm(rows[first:last], gate_up[expert].T, out=both[first:last])
        gate, up = both.chunk(2, dim=1)
        share = weight.reshape(-1).index_select(0, order).to(x.dtype).unsqueeze(1)
        hidden = functional.silu(gate).mul_(up).mul_(share)
        out = rows.new_empty(rows.shape[0], down.shape[1])
        for expert, first, last in bounds:
            torch.mm(hidden[first:last], down[expert].T, out=out[first:last])
        ctx.save_for_backward(token, place, rows, both, share, hidden, gate_up, down)
        ctx.bounds, ctx.used = bounds, used
        return out.index_select(0, place).view(-1, used, down.shape[1]).sum(1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None, Tensor, Tensor]:
        """Return the gradients of the tokens, the router's weights and both expert matrices."""
        token, place, rows, both, share, hidden, gate_up, down = ctx.saved_tensors
        used = ctx.used
        d_out = grads[0].index_select(0, token)
        d_hidden = torch.empty_like(hidden)
        d_down = torch.zeros_like(down)
        for expert, first, last in ctx.bounds:
            torch.mm(d_out[first:last], down[expert], out=d_hidden[first:last])
            torch.mm(d_out[first:last].T, hidden[first:last], out=d_down[expert])
        gate, up = both.chunk(2, dim=1)
        act, slope = silu_backward(gate)
        scaled = d_hidden * share
        d_share = (d_hidden * act).mul_(up).sum(1, dtype=torch.float32)
        d_both = torch.cat([(scaled * up).mul_(slope), scaled.mul_(act)], dim=1)
        d_rows = torch.empty_like(rows)
        d_gate_up = torch.zeros_like(gate_up)
        for expert, first, last in ctx.bounds:
            torch.mm(d_both[first:last], gate_up[expert], out=d_rows[first:last])
            torch.mm(d_both[first:last].T, rows[first:last], out=d_gate_up[expert])
        d_x = d_rows.index_select(0, place).view(-1, used, rows.shape[1]).sum(1)
        d_weight = d_share.index_select(0, place).view(-1, used)
        return d_x, d_weight, None, d_gate_up, d_down


class RoutedFeedForward(nn.Module):
    """SwiGLU experts: softmax over all, the best ``experts_used``, weights normalised to one."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.used = config.experts_used
        self.router = nn.Parameter(torch.randn(config.experts, config.width) * 0.02)
        shape = (config.experts, 2 * config.ffn, config.width)
        self.gate_up = nn.Parameter(torch.randn(shape) / config.width**0.5)
        self.down = _silent_matrix(config.experts, config.width, config.ffn)

    def forward(self, x: Tensor, routing: Routing) -> Tensor:
        """Apply to [N, d] and note the router's choices in ``routing``."""
        logits = functional.linear(x.float(), self.router)
        probabilities = logits.softmax(-1)
        best, chosen = probabilities.topk(self.used, dim=-1)
        routing.logits.append(logits)
        routing.probabilities.append(probabilities)
        routing.chosen.append(chosen)
        weight = best / best.sum(-1, keepdim=True)
        gate_up, down = self.gate_up.to(x.dtype), self.down.to(x.dtype)
        return ExpertFeedForward.apply(x, weight, chosen, gate_up, down)  # type: ignore[no-any-return]


class Block(nn.Module):
    """Attention and feed-forward, each on the normalised residual stream."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.attention_norm = Norm(config.width, config.norm_eps)
        self.attention = Attention(config)
        self.ffn_norm = Norm(config.width, config.norm_eps)
        self.ffn = RoutedFeedForward(config) if config.experts else DenseFeedForward(config)


class LanguageModel(nn.Module):
    """Token embedding, blocks, a last norm and the output matrix."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Parameter(torch.randn(config.vocab, config.width))
        self.output = nn.Parameter(torch.randn(config.vocab, config.width) * 0.02)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = Norm(config.width, config.norm_eps)
        half = config.head_dim // 2
        frequency = config.rope_base ** (-torch.arange(half) / half)
        angle = torch.arange(config.context).unsqueeze(1) * frequency
        self.register_buffer("cos", angle.cos(), persistent=False)
        self.register_buffer("sin", angle.sin(), persistent=False)

    def features(
        self, tokens: Tensor, cache: Cache | None = None, dtype: torch.dtype = COMPUTE_TYPE
    ) -> tuple[Tensor, Routing]:
        """Return the normalised last hidden state [B, T, d] and the routers' outputs."""
        batch, length = tokens.shape
        start = cache.length if cache is not None else 0
        rotation = (self.cos[start : start + length].to(dtype), self.sin[start : start + length].to(dtype))
        routing = Routing()
        x = functional.embedding(tokens, self.embedding)
        for layer, block in enumerate(self.blocks):
            x = x + block.attention(block.attention_norm(x).to(dtype), rotation, cache, layer)
            flat = block.ffn_norm(x).to(dtype).view(batch * length, -1)
            x = x + block.ffn(flat, routing).view(batch, length, -1)
        if cache is not None:
            cache.length += length
        return self.norm(x).to(dtype), routing

    def logits(self, features: Tensor) -> Tensor:
        """Return the scores of the next token."""
        return functional.linear(features, self.output.to(features.dtype))


def parameter_count(model: nn.Module) -> int:
    """Return the number of trained values."""
    return sum(parameter.numel() for parameter in model.parameters())

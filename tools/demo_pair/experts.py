"""Compute the routed feed-forward: one matrix product per expert over the tokens sorted by expert.

On a CPU this loop is faster than batched or grouped products. The backward pass is written by hand, so that
autograd copies no slices.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


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
    """SwiGLU of the chosen experts, weighted by the router and summed per token."""

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
        hidden = torch.nn.functional.silu(gate).mul_(up).mul_(share)
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

"""Compute the split model and its prediction layer in torch, in the form of llama.cpp's `glm4moe`.

Weights have llama.cpp's names without their layer. Those of a layer's experts and shared experts are joined,
and a mask over the neurons stands for the choice of experts, since all chosen experts have the weight one.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from gguf import GGUFReader, quants
from torch import Tensor
from torch.nn import functional

from spac.errors import InputError
from tools.split_dense.writer import RESULT

TYPE = torch.bfloat16
Weights = dict[str, Tensor]
Pair = tuple[Tensor, Tensor]
"""Keys and values [B, G, T, D]."""
_TOP, _LATELY = 40, 48


class Text(NamedTuple):
    """Texts that the model read and continued, all of one length."""

    tokens: Tensor
    """int64 [B, T]."""
    states: Tensor
    """The prediction layer's inputs: the last hidden states after the last norm, [B, T, d]."""
    routes: Tensor
    """The experts of each token, uint8 [B, T, L, used]."""


class Split:
    """The split model of a file."""

    def __init__(self, path: Path) -> None:
        reader = GGUFReader(path)
        self.raw = {each.name: each for each in reader.tensors}
        if "blk.0.ffn_gate_shexp.weight" not in self.raw or f"{RESULT}.expert_count" not in reader.fields:
            raise InputError(f"{path} is no split model: make one with `python -m tools.split_dense`")

        def value(key: str) -> Any:
            return reader.fields[f"{RESULT}.{key}"].contents()

        self.n_head, self.n_group = value("attention.head_count"), value("attention.head_count_kv")
        self.n_used, self.n_expert = value("expert_used_count"), value("expert_count")
        self.size = value("expert_feed_forward_length")
        self.eps, base = value("attention.layer_norm_rms_epsilon"), value("rope.freq_base")
        half = value("rope.dimension_count") // 2
        angle = torch.arange(2048).unsqueeze(1) * base ** (-torch.arange(half) / half)
        self.rotation = angle.cos(), angle.sin()
        self.embedding, self.output_norm = (
            self.tensor(f"{name}.weight") for name in ("token_embd", "output_norm")
        )
        self.head = self.tensor("output.weight") if "output.weight" in self.raw else self.embedding
        extra = f"{RESULT}.nextn_predict_layers" in reader.fields
        n_layer = value("block_count") - extra
        self.layers = [self.layer(il) for il in range(n_layer)]
        self.prediction: Weights | None = None
        """The prediction layer, where the file has one."""
        if extra:
            names = ("eh_proj", "enorm", "hnorm", "shared_head_norm")
            own = {f"nextn.{name}": self.tensor(f"blk.{n_layer}.nextn.{name}.weight") for name in names}
            self.prediction = self.layer(n_layer) | own

    def tensor(self, name: str) -> Tensor:
        """Return a tensor; matrices in TYPE, others and routers in float32."""
        raw = self.raw[name]
        whole = torch.from_numpy(quants.dequantize(raw.data, raw.tensor_type).astype(np.float32))
        return whole if whole.dim() == 1 or "gate_inp" in name else whole.to(TYPE)

    def layer(self, il: int) -> Weights:
        """Return the weights of a layer."""
        names = (
            "attn_norm",
            "attn_q",
            "attn_k",
            "attn_v",
            "attn_output",
            "post_attention_norm",
            "ffn_gate_inp",
        )
        found = {name: self.tensor(f"blk.{il}.{name}.weight") for name in names}
        for name in ("ffn_gate", "ffn_up", "ffn_down"):
            routed, shared = (self.tensor(f"blk.{il}.{name}_{kind}.weight") for kind in ("exps", "shexp"))
            rows = routed.flatten(0, 1) if name != "ffn_down" else routed.transpose(0, 1).flatten(1)
            found[name] = torch.cat([rows, shared], dim=int(name == "ffn_down")).contiguous()
        return found

    def norm(self, x: Tensor, weight: Tensor) -> Tensor:
        """Return the root mean square norm of x, in TYPE."""
        return functional.rms_norm(x.float(), weight.shape, weight, self.eps).to(TYPE)

    def heads(self, x: Tensor, w: Weights, at: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries [B, H, T, D], keys and values [B, G, T, D] of the positions from `at` on."""
        x = self.norm(x, w["attn_norm"])
        cos, sin = (part[at : at + x.shape[1]].to(TYPE) for part in self.rotation)

        def part(name: str, n: int, *, turned: bool) -> Tensor:
            y = functional.linear(x, w[name].to(TYPE)).unflatten(-1, (n, -1)).transpose(1, 2)
            if not turned:
                return y
            first, second = y.chunk(2, -1)
            return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)

        return (
            part("attn_q", self.n_head, turned=True), part("attn_k", self.n_group, turned=True),
            part("attn_v", self.n_group, turned=False),
        )  # fmt: skip

    def attention(self, q: Tensor, k: Tensor, v: Tensor, own: Pair | None = None) -> Tensor:
        """Return what the last T of the tokens read, [B, T, H * D].

        own: other keys and values of the same tokens, which each token has in place of the first ones.
        """
        (n, _, length, size), n_key = q.shape, k.shape[2]
        rows = q.reshape(n, self.n_group, -1, size)  # the heads of a group, one after the other
        hidden = torch.full((length, n_key), float("-inf"), dtype=TYPE).triu(1 + n_key - length)
        scores = (rows @ k.mT * size**-0.5).unflatten(2, (-1, length)) + hidden
        if own is None:
            y = scores.softmax(-1).flatten(2, 3) @ v
        else:
            ahead = n_key - length
            itself = torch.ones(length, n_key, dtype=torch.bool).tril(ahead).triu(ahead)
            own_scores = (rows.unflatten(2, (-1, length)) * own[0].unsqueeze(2)).sum(-1, keepdim=True)
            shares = torch.where(itself, own_scores * size**-0.5, scores).softmax(-1)
            y = shares.masked_fill(itself, 0).flatten(2, 3) @ v
            y = y.unflatten(2, (-1, length))
            y = y + shares.diagonal(ahead, -2, -1).unsqueeze(-1) * own[1].unsqueeze(2)
        return y.reshape(n, self.n_head, length, size).transpose(1, 2).flatten(2)

    def experts(self, x: Tensor, w: Weights) -> tuple[Tensor, Tensor]:
        """Return the sum of the chosen and the shared experts for x, and the chosen ones [..., used]."""
        logits = functional.linear(x.float(), w["ffn_gate_inp"])
        chosen = logits.topk(self.n_used, dim=-1).indices
        mask = torch.zeros_like(logits, dtype=TYPE).scatter(-1, chosen, 1)
        mask = mask.repeat_interleave(self.size, -1)
        mask = functional.pad(mask, (0, len(w["ffn_gate"]) - mask.shape[-1]), value=1.0)
        gate, up, down = (w[name].to(TYPE) for name in ("ffn_gate", "ffn_up", "ffn_down"))
        neurons = functional.silu(functional.linear(x, gate)) * functional.linear(x, up) * mask
        return functional.linear(neurons, down), chosen

    def block(
        self, x: Tensor, w: Weights, heads: tuple[Tensor, Tensor, Tensor], own: Pair | None = None
    ) -> Pair:
        """Return a layer's output for x, from its queries, keys and values, and the chosen experts."""
        x = x + functional.linear(self.attention(*heads, own), w["attn_output"].to(TYPE))
        y, chosen = self.experts(self.norm(x, w["post_attention_norm"]), w)
        return x + y, chosen

    @torch.no_grad()
    def write(
        self, prompts: Sequence[Sequence[int]], length: int, heat: Tensor, seed: int, penalty: float = 0.0
    ) -> Text:
        """Read the prompts, and continue each to `length` tokens at its temperature, `heat` [B].

        penalty: what the logits of the last tokens written lose, above 0 against repetitions.
        """
        torch.manual_seed(seed)
        n, n_layer, width = len(prompts), len(self.layers), self.embedding.shape[1]
        known = torch.full((n, length), -1)
        for row, prompt in zip(known, prompts, strict=True):
            row[: min(length, len(prompt))] = torch.tensor(prompt[:length])
        size = len(self.layers[0]["attn_k"]) // self.n_group
        cache = torch.zeros(n_layer, 2, n, self.n_group, length, size, dtype=TYPE)
        states = torch.empty(n, length, width, dtype=TYPE)
        routes = torch.empty(n, length, n_layer, self.n_used, dtype=torch.uint8)
        at, end = 0, min(length, *map(len, prompts))
        while at < length:
            x = self.embedding[known[:, at:end]]
            for il, (w, kept) in enumerate(zip(self.layers, cache, strict=True)):
                q, k, v = self.heads(x, w, at)
                kept[0, :, :, at:end], kept[1, :, :, at:end] = k, v
                x, chosen = self.block(x, w, (q, kept[0, :, :, :end], kept[1, :, :, :end]))
                routes[:, at:end, il] = chosen.to(torch.uint8)
            states[:, at:end] = self.norm(x, self.output_norm)
            if end < length:
                best = functional.linear(states[:, end - 1], self.head).float().topk(_TOP)
                noise = -torch.empty_like(best.values).exponential_().log()
                free = known[:, end] < 0
                last = known[:, max(end - _LATELY, min(map(len, prompts))) : end]
                again = (best.indices.unsqueeze(2) == last.unsqueeze(1)).any(2)
                pick = (best.values - penalty * again + heat.unsqueeze(1) * noise).argmax(1, keepdim=True)
                known[free, end] = best.indices.gather(1, pick).squeeze(1)[free]
            at, end = end, end + 1
        return Text(known, states, routes)

"""Measure the routers: how evenly, and how locally, experts are used."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from .model import LanguageModel

DRAFT_LENGTHS = (1, 3, 5, 8)
_NEAR = 8


@dataclass(frozen=True)
class LayerRouting:
    """Figures of one layer over some text.

    ``entropy`` belongs to the share that each expert has of all activations, in bits (uniform: log2 of the
    number of experts). ``token_entropy`` belongs to the router's probabilities for one token, mean.
    ``lowest_load`` is the rarest expert's share as a part of the uniform share. ``kept`` is the share of a
    token's experts that the previous token used. ``near`` is the share that one of the last 8 tokens used.
    ``growth`` is, for a draft length, the distinct experts of gamma + 1 consecutive tokens over those of one
    token (the paper's a / b).
    """

    entropy: float
    token_entropy: float
    lowest_load: float
    kept: float
    near: float
    growth: dict[int, float]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)


def _entropy(probability: Tensor) -> Tensor:
    return -(probability * probability.clamp_min(1e-12).log2()).sum(-1)


def measure_layer(chosen: Tensor, probability: Tensor) -> LayerRouting:
    """Return figures from ``chosen`` [B, T, k] and ``probability`` [B, T, E]."""
    batch, length, used = chosen.shape
    experts = probability.shape[-1]
    active = torch.zeros(batch, length, experts, dtype=torch.bool).scatter_(2, chosen, True)
    load = active.float().mean((0, 1)) / used
    recent = torch.stack([active[:, _NEAR - back : length - back] for back in range(1, _NEAR + 1)])
    now = active[:, _NEAR:]
    share = now.sum().item()
    growth = {}
    for gamma in DRAFT_LENGTHS:
        window = active.unfold(1, gamma + 1, 1).any(-1)
        growth[gamma] = window.sum(-1).float().mean().item() / used
    return LayerRouting(
        entropy=_entropy(load).item(),
        token_entropy=_entropy(probability).mean().item(),
        lowest_load=load.min().item() * experts,
        kept=(now & recent[0]).sum().item() / share,
        near=(now & recent.any(0)).sum().item() / share,
        growth=growth,
    )


@torch.no_grad()
def measure(model: LanguageModel, tokens: Tensor) -> list[LayerRouting]:
    """Return figures of every layer over sequences ``tokens`` [B, T]."""
    _, routing = model.features(tokens)
    shape = (*tokens.shape, -1)
    return [
        measure_layer(chosen.view(shape), probability.view(shape))
        for chosen, probability in zip(routing.chosen, routing.probabilities, strict=True)
    ]

"""Sample from a model in torch, many sequences at once, by llama.cpp's default chain of samplers."""

from __future__ import annotations

import torch
from torch import Tensor

from .model import Cache, LanguageModel

TEMPERATURE, TOP_K, TOP_P, MIN_P = 0.7, 40, 0.95, 0.05


def distribution(scores: Tensor, temperature: Tensor) -> tuple[Tensor, Tensor]:
    """Return probabilities [N, top_k] after top-k, top-p and min-p at temperature one, then ``temperature``
    [N] (zero: the best token), and their tokens. The best token comes first."""
    chance, tokens = scores.softmax(-1).topk(TOP_K, dim=-1)
    before = chance.cumsum(-1) - chance
    keep = (before < TOP_P) & (chance >= MIN_P * chance[:, :1])
    cool = temperature.clamp_min(1e-2).unsqueeze(1)
    result = chance.log().div(cool).masked_fill(~keep, float("-inf")).softmax(-1)
    best = torch.zeros_like(result)
    best[:, 0] = 1.0
    return torch.where(temperature.unsqueeze(1) > 0, result, best), tokens


@torch.no_grad()
def generate(model: LanguageModel, prompts: Tensor, count: int, temperature: Tensor, seed: int = 0) -> Tensor:
    """Return ``count`` tokens after each of ``prompts`` [B, P], at the temperatures [B]. The prompts are part
    of the result."""
    generator = torch.Generator().manual_seed(seed)
    cache: Cache = {}
    result, given = [prompts], prompts
    for _ in range(count):
        features, _ = model.features(given, cache)
        chance, tokens = distribution(model.scores(features[:, -1]), temperature)
        given = tokens.gather(1, torch.multinomial(chance, 1, generator=generator))
        result.append(given)
    return torch.cat(result, dim=1)

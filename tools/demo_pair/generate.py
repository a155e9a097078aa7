"""Sample from a model in torch, many sequences at once, by llama.cpp's default chain of samplers."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .model import COMPUTE_TYPE, Cache, LanguageModel


@dataclass(frozen=True)
class Sampling:
    """Top-k, top-p and min-p at temperature one, then the temperature (zero: the best token)."""

    temperature: float = 0.7
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05


DEFAULT_SAMPLING = Sampling()
GREEDY = Sampling(temperature=0.0)


def distribution(
    scores: Tensor, sampling: Sampling, temperature: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return probabilities [N, top_k] after the samplers, and their tokens. The best token comes first.

    ``temperature`` [N], where given, replaces the one in ``sampling``, row by row.
    """
    chance, tokens = scores.float().softmax(-1).topk(sampling.top_k, dim=-1)
    before = chance.cumsum(-1) - chance
    keep = (before < sampling.top_p) & (chance >= sampling.min_p * chance[:, :1])
    if temperature is None:
        temperature = torch.full((len(scores),), sampling.temperature)
    cool = temperature.clamp_min(1e-2).unsqueeze(1)
    result = chance.log().div(cool).masked_fill(~keep, float("-inf")).softmax(-1)
    best = torch.zeros_like(result)
    best[:, 0] = 1.0
    return torch.where(temperature.unsqueeze(1) > 0, result, best), tokens


@torch.no_grad()
def generate(
    model: LanguageModel,
    prompts: Tensor,
    count: int,
    sampling: Sampling = DEFAULT_SAMPLING,
    temperature: Tensor | None = None,
    seed: int = 0,
) -> Tensor:
    """Return ``count`` tokens after each of ``prompts`` [B, P]. The prompts are part of the result."""
    generator = torch.Generator().manual_seed(seed)
    batch, length = prompts.shape
    cache = Cache.empty(model.config, batch, length + count, COMPUTE_TYPE)
    result = torch.empty(batch, length + count, dtype=torch.long)
    result[:, :length] = prompts
    given = prompts
    for place in range(length, length + count):
        features, _ = model.features(given, cache)
        chance, tokens = distribution(model.logits(features[:, -1]), sampling, temperature)
        given = tokens.gather(1, torch.multinomial(chance, 1, generator=generator))
        result[:, place] = given[:, 0]
    return result

"""Compute how much of a draft the target accepts, from one forward pass of each over text of the target.

Every step drafts ``length`` tokens. The step ends at the first refusal, and the target adds a token of its
own. For a given text of the target, the acceptance of a drafted token does not depend on how that text came
about. So no generation has to be repeated. There are three kinds of acceptance:

* ``greedy``: both take their best token; accepted where these agree.
* ``sampled``: speculative sampling; the written token x was drafted and accepted with chance
  min(1, q(x) / p(x)).
* ``matched``: llama.cpp's way; the draft takes its best token, accepted where the target sampled it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from .generate import Sampling, distribution
from .model import LanguageModel

DRAFT_LENGTH = 8
LONGEST_PERIOD = 64
SHORTEST_LOOP = 24


@dataclass(frozen=True)
class Acceptance:
    """Figures over some steps: accepted of drafted, tokens per step, and agreement token by token."""

    rate: float
    tokens_per_step: float
    per_token: float
    steps: int


@dataclass(frozen=True)
class Measured:
    """Acceptance over all text, in repetition loops and outside, and the share of loops."""

    all: Acceptance
    inside: Acceptance
    outside: Acceptance
    loop_share: float


def in_loop(tokens: np.ndarray) -> np.ndarray:
    """Return for each token if the text up to and with it repeats itself.

    It does when, for some period of at most 64 tokens, the last ``max(24, 2 * period)`` tokens each equal the
    one a period earlier.
    """
    looping = np.zeros(len(tokens), dtype=bool)
    for period in range(1, min(LONGEST_PERIOD, len(tokens) - 1) + 1):
        same = np.concatenate([np.zeros(period, dtype=bool), tokens[period:] == tokens[:-period]])
        last_break = np.maximum.accumulate(np.where(same, -1, np.arange(len(tokens))))
        looping |= np.arange(len(tokens)) - last_break >= max(SHORTEST_LOOP, 2 * period)
    return looping


@torch.no_grad()
def _scores(model: LanguageModel, rows: Tensor, prompt: int) -> Tensor:
    features, _ = model.features(rows)
    return model.logits(features[:, prompt - 1 : -1]).flatten(0, 1)


def accepted_tokens(
    target: LanguageModel, draft: LanguageModel, rows: Tensor, prompt: int, sampling: Sampling, matched: bool
) -> np.ndarray:
    """Return bool [B, T - prompt]: the target would have accepted the draft's token at this position."""
    result, random = [], torch.Generator().manual_seed(5)
    for part in rows.split(8):
        written = part[:, prompt:].reshape(-1, 1)
        drafted = _scores(draft, part, prompt)
        if matched or sampling.temperature == 0:
            accepted = drafted.argmax(-1, keepdim=True) == written
        else:
            mine = chance_of(written, *distribution(drafted, sampling))
            theirs = chance_of(written, *distribution(_scores(target, part, prompt), sampling))
            accepted = torch.rand(mine.shape, generator=random) * theirs.clamp_min(1e-9) < mine
        result.append(accepted.view(len(part), -1))
    return torch.cat(result).numpy()


def chance_of(written: Tensor, chance: Tensor, tokens: Tensor) -> Tensor:
    """Return the probability [N, 1] of ``written`` [N, 1]; zero where the samplers dropped it."""
    return (chance * (tokens == written)).sum(-1, keepdim=True)


def _steps(accepted: np.ndarray, length: int) -> list[tuple[int, int]]:
    """Return (first token, accepted tokens) of each step over one text."""
    steps, place = [], 0
    while place + length < len(accepted):
        window = accepted[place : place + length]
        count = length if window.all() else int(window.argmin())
        steps.append((place, count))
        place += count + 1
    return steps


def _summary(counts: list[int], agreed: np.ndarray, length: int) -> Acceptance:
    if not counts:
        return Acceptance(float("nan"), float("nan"), float("nan"), 0)
    mean = float(np.mean(counts))
    return Acceptance(mean / length, mean + 1, float(agreed.mean()), len(counts))


def summarise(rows: np.ndarray, accepted: np.ndarray, prompt: int, length: int = DRAFT_LENGTH) -> Measured:
    """Split the steps over ``rows`` [B, T]: those that begin in a repetition loop, and the others."""
    looping = np.stack([in_loop(row)[prompt:] for row in rows])
    counts: dict[bool, list[int]] = {True: [], False: []}
    for text, loop in zip(accepted, looping, strict=True):
        for place, count in _steps(text, length):
            counts[bool(loop[place])].append(count)
    return Measured(
        all=_summary(counts[True] + counts[False], accepted, length),
        inside=_summary(counts[True], accepted[looping], length),
        outside=_summary(counts[False], accepted[~looping], length),
        loop_share=float(looping.mean()),
    )

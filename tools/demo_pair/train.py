"""Train the target on the corpus. The training may be stopped at any time, and continues where it was."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch
from torch import Tensor

from .config import TARGET, ModelConfig
from .data import Batches, Stream, prepare
from .losses import CrossEntropy
from .model import LanguageModel, Routing
from .training import Training

DEFAULT_TOKENS = 9.6e6
_RATE, _ROUTER_RATE = 3e-3, 1e-3
_BALANCE, _SCORE_PENALTY = 0.08, 1e-4
_LOAD_MEMORY = 0.97


class Balance:
    """A penalty that keeps all experts in use: load times mean probability, the load taken over some thirty
    batches.

    Over many batches, which have many different texts, each expert gets its share. Within one text the router
    is free to prefer a few experts.
    """

    def __init__(self, config: ModelConfig) -> None:
        self.load = torch.full((config.layers, config.experts), 1 / config.experts)

    def loss(self, routing: Routing) -> Tensor:
        """Return the penalty of one batch, mean over layers."""
        terms = []
        for layer, (chosen, probability) in enumerate(
            zip(routing.chosen, routing.probabilities, strict=True)
        ):
            experts = probability.shape[-1]
            now = torch.bincount(chosen.flatten(), minlength=experts) / chosen.numel()
            self.load[layer].lerp_(now, 1 - _LOAD_MEMORY)
            terms.append(experts * (self.load[layer].clone() * probability.mean(0)).sum())
        return torch.stack(terms).mean()


def score_penalty(routing: Routing) -> Tensor:
    """Return a penalty that keeps the router's scores small."""
    return torch.stack([scores.logsumexp(-1).square().mean() for scores in routing.logits]).mean()


def train_target(work: Path, tokens: int, workers: int) -> None:
    """Train for ``tokens`` tokens in all. Write ``target.pt`` and ``target.log``."""
    torch.manual_seed(0)
    batches, balance = Batches(Stream.load(work / "train.npz")), Balance(TARGET)
    training = Training(work / "target.pt", lambda: LanguageModel(TARGET), _RATE, _ROUTER_RATE)
    model = training.model

    def loss_of(number: int) -> tuple[Tensor, dict[str, float]]:
        inputs, wanted = batches.get(number)
        features, routing = model.features(inputs)
        loss = CrossEntropy.apply(features.flatten(0, 1), model.output.to(features.dtype), wanted.flatten())
        uneven = balance.loss(routing)
        lowest = balance.load.min().item() * TARGET.experts
        figures = {"loss": loss.item(), "uneven": uneven.item(), "lowest_load": lowest}
        return loss + _BALANCE * uneven + _SCORE_PENALTY * score_penalty(routing), figures

    training.run(loss_of, tokens, workers)


def main() -> None:
    """Run the command line of the target's training."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--work", type=Path, default=Path("build/demo_pair"))
    parser.add_argument("--tokens", type=float, default=DEFAULT_TOKENS)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 2)
    args = parser.parse_args()
    prepare(args.work)
    train_target(args.work, int(args.tokens), args.workers)


if __name__ == "__main__":
    main()

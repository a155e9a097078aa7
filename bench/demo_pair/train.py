"""Training of the target on the corpus; may be stopped at any time and goes on where it was."""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .config import TARGET, ModelConfig
from .data import TOKENS_PER_STEP, Batches, Stream, prepare
from .losses import CrossEntropy
from .model import LanguageModel, Routing
from .optimizer import Optimizer

DEFAULT_TOKENS = 14e6
_RATE, _ROUTER_RATE = 3e-3, 1e-3
_WARM_UP_STEPS = 50
_BALANCE, _SCORE_PENALTY = 0.08, 1e-4
_LOAD_MEMORY = 0.97
_SAVE_EVERY_SECONDS = 150


def schedule(step: int, steps: int, hold: float = 0.2) -> float:
    """Learning rate factor: linear warm-up, a plateau, then linear down to zero."""
    if step < _WARM_UP_STEPS:
        return (step + 1) / _WARM_UP_STEPS
    start = max(hold * steps, _WARM_UP_STEPS)
    return min(1.0, max(0.0, (steps - step) / (steps - start)))


class Balance:
    """Keeps experts alive: load times mean probability, the load taken over some thirty batches.

    Over many batches - that is, over many different texts - each expert gets its share, while within
    one text the router is free to prefer a few: that is the locality which caching lives from.
    """

    def __init__(self, config: ModelConfig) -> None:
        self.load = torch.full((config.layers, config.experts), 1 / config.experts)

    def loss(self, routing: Routing) -> Tensor:
        """The penalty of one batch, mean over layers."""
        terms = []
        for layer, (chosen, probability) in enumerate(zip(routing.chosen, routing.probabilities, strict=True)):
            experts = probability.shape[-1]
            now = torch.bincount(chosen.flatten(), minlength=experts) / chosen.numel()
            self.load[layer].lerp_(now, 1 - _LOAD_MEMORY)
            terms.append(experts * (self.load[layer].clone() * probability.mean(0)).sum())
        return torch.stack(terms).mean()


def score_penalty(routing: Routing) -> Tensor:
    """Keeps the router's scores small."""
    return torch.stack([scores.logsumexp(-1).square().mean() for scores in routing.logits]).mean()


@dataclass
class Progress:
    """Where a training stands."""

    step: int = 0
    seconds: float = 0.0


def save(path: Path, model: LanguageModel, progress: Progress, **more: Any) -> None:
    """Write a checkpoint; the old one stays until the new one is complete."""
    state = {
        "config": model.config.to_dict(),
        "model": model.state_dict(),
        "step": progress.step,
        "seconds": progress.seconds,
        **more,
    }
    partial = path.with_suffix(".partial")
    torch.save(state, partial)
    partial.replace(path)


def load_model(path: Path) -> tuple[LanguageModel, dict[str, Any]]:
    """The model of a checkpoint and all that was saved beside it."""
    state: dict[str, Any] = torch.load(path, weights_only=True)
    model = LanguageModel(ModelConfig(**state["config"]))
    model.load_state_dict(state["model"])
    return model, state


def note(path: Path, **figures: Any) -> None:
    """Add a line of figures to a log, and print it."""
    line = json.dumps(figures)
    print(line, flush=True)
    with path.open("a", encoding="utf-8") as log:
        log.write(line + "\n")


def train_target(work: Path, tokens: int) -> None:
    """Train for ``tokens`` tokens in all; writes ``target.pt`` and ``target.log``."""
    torch.manual_seed(0)
    batches = Batches(Stream.load(work / "train.npz"))
    path, progress = work / "target.pt", Progress()
    model = LanguageModel(TARGET)
    optimizer, balance = Optimizer(model, _RATE, _ROUTER_RATE), Balance(TARGET)
    if path.exists():
        model, state = load_model(path)
        optimizer = Optimizer(model, _RATE, _ROUTER_RATE)
        optimizer.load_state_dict(state["optimizer"])
        balance.load = state["load"]
        progress = Progress(state["step"], state["seconds"])
    steps, saved, mean_loss = tokens // TOKENS_PER_STEP, time.monotonic(), 0.0
    while progress.step < steps:
        begun = time.monotonic()
        inputs, wanted = batches.get(progress.step)
        features, routing = model.features(inputs)
        loss = CrossEntropy.apply(features.flatten(0, 1), model.output.to(features.dtype), wanted.flatten())
        uneven = balance.loss(routing)
        (loss + _BALANCE * uneven + _SCORE_PENALTY * score_penalty(routing)).backward()
        optimizer.step(schedule(progress.step, steps))
        progress.step += 1
        progress.seconds += time.monotonic() - begun
        mean_loss = loss.item() if mean_loss == 0 else 0.95 * mean_loss + 0.05 * loss.item()
        if progress.step % 20 == 0:
            lowest = (balance.load.min() * TARGET.experts).item()
            note(work / "target.log", step=progress.step, seconds=round(progress.seconds),
                 loss=round(mean_loss, 4), uneven=round(uneven.item(), 3), lowest_load=round(lowest, 3))
        if time.monotonic() - saved > _SAVE_EVERY_SECONDS or progress.step == steps:
            save(path, model, progress, optimizer=optimizer.state_dict(), load=balance.load,
                 finished=progress.step == steps)
            saved = time.monotonic()


def main() -> None:
    """Command line of the target's training."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--work", type=Path, default=Path("build/demo_pair"))
    parser.add_argument("--tokens", type=float, default=DEFAULT_TOKENS)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    prepare(args.work)
    train_target(args.work, int(args.tokens))


if __name__ == "__main__":
    main()

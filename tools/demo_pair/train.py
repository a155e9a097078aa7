"""Train the target on the corpus, and the loop that trains either model.

Several single-threaded workers train on shared weights. On a CPU that is faster than one process with several
threads, which would wait for one another in every product. Each worker computes the gradient of its own
batch. Then each worker updates its own part of the weights from the mean of all gradients. Weights, gradients
and optimizer state lie in shared memory. A training may be stopped at any time, and continues where it was.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, multiprocessing

from .config import TARGET, ModelConfig
from .data import TOKENS_PER_BATCH, Batches, Stream, prepare
from .model import LanguageModel, Routing
from .optimizer import CrossEntropy, Optimizer

DEFAULT_TOKENS = 9.6e6
_RATE, _ROUTER_RATE = 3e-3, 1e-3
_BALANCE, _SCORE_PENALTY = 0.08, 1e-4
_LOAD_MEMORY = 0.97
WARM_UP_STEPS = 50
_SAVE_EVERY_SECONDS = 120
_NOTE_EVERY_STEPS = 10

#: Returns the loss of the batch with a given number, and figures for the log.
LossOf = Callable[[int], tuple[Tensor, dict[str, float]]]


def schedule(step: int, steps: int, hold: float = 0.2) -> float:
    """Return the learning rate factor: linear warm-up, a plateau, then linear down to zero."""
    if step < WARM_UP_STEPS:
        return (step + 1) / WARM_UP_STEPS
    start = max(hold * steps, WARM_UP_STEPS)
    return min(1.0, max(0.0, (steps - step) / (steps - start)))


@dataclass
class Progress:
    """The progress of a training."""

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0


def load_model(path: Path) -> tuple[LanguageModel, dict[str, Any]]:
    """Return the model of a checkpoint, and everything that was saved beside it."""
    state: dict[str, Any] = torch.load(path, weights_only=True)
    model = LanguageModel(ModelConfig(**state["config"]))
    model.load_state_dict(state["model"])
    return model, state


class Training:
    """A model, its optimizer and its checkpoint at ``path``. The log lies beside it."""

    def __init__(
        self, path: Path, fresh: Callable[[], LanguageModel], rate: float, router_rate: float
    ) -> None:
        self.path, self.progress = path, Progress()
        if path.exists():
            self.model, state = load_model(path)
            self.optimizer = Optimizer(self.model, rate, router_rate)
            self.optimizer.load_state_dict(state["optimizer"])
            self.progress = Progress(state["step"], state["tokens"], state["seconds"])
        else:
            self.model = fresh()
            self.optimizer = Optimizer(self.model, rate, router_rate)

    def run(self, loss_of: LossOf, tokens: int, workers: int, **more: Any) -> None:
        """Train until ``tokens`` tokens are done in all. ``more`` is saved in every checkpoint."""
        self._steps = tokens // (TOKENS_PER_BATCH * workers)
        if self.progress.step >= self._steps:
            return
        torch.set_num_threads(1)
        context = multiprocessing.get_context("fork")
        barrier: Barrier = context.Barrier(workers)
        self.model.share_memory()
        self.optimizer.share_memory()
        gradients = [
            {name: torch.zeros_like(value).share_memory_() for name, value in self.optimizer.named.items()}
            for _ in range(workers)
        ]
        others = [
            context.Process(target=self._work, args=(rank, barrier, gradients, loss_of, more), daemon=True)
            for rank in range(1, workers)
        ]
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
        for process in others:
            process.start()
        self._work(0, barrier, gradients, loss_of, more)
        for process in others:
            process.join()

    def _work(
        self,
        rank: int,
        barrier: Barrier,
        gradients: list[dict[str, Tensor]],
        loss_of: LossOf,
        more: dict[str, Any],
    ) -> None:
        workers, progress = len(gradients), self.progress
        mine = self.optimizer.share(rank, workers)
        for name, value in self.optimizer.named.items():
            value.grad = gradients[rank][name]
        saved, mean_loss = time.monotonic(), 0.0
        while progress.step < self._steps:
            begun = time.monotonic()
            loss, figures = loss_of(progress.step * workers + rank)
            loss.backward()
            barrier.wait()
            factor = schedule(progress.step, self._steps)
            self.optimizer.step(mine, [{name: part[name] for name in mine} for part in gradients], factor)
            barrier.wait()
            torch._foreach_zero_(list(gradients[rank].values()))
            progress.step += 1
            progress.tokens += TOKENS_PER_BATCH * workers
            progress.seconds += time.monotonic() - begun
            mean_loss = 0.95 * mean_loss + 0.05 * figures["loss"] if mean_loss else figures["loss"]
            if rank == 0 and progress.step % _NOTE_EVERY_STEPS == 0:
                self._note(figures | {"loss": mean_loss})
            last = progress.step == self._steps
            if rank == 0 and (last or time.monotonic() - saved > _SAVE_EVERY_SECONDS):
                self._save(finished=last, **more)
                saved = time.monotonic()

    def _note(self, figures: dict[str, float]) -> None:
        progress = self.progress
        line = json.dumps(
            {
                "step": progress.step,
                "tokens": progress.tokens,
                "seconds": round(progress.seconds),
                **{name: round(value, 4) for name, value in figures.items()},
            }
        )
        print(line, flush=True)
        with self.path.with_suffix(".log").open("a", encoding="utf-8") as log:
            log.write(line + "\n")

    def _save(self, **more: Any) -> None:
        """Write a checkpoint. The old one stays until the new one is complete."""
        state = {
            "config": asdict(self.model.config),
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "step": self.progress.step,
            "tokens": self.progress.tokens,
            "seconds": self.progress.seconds,
            **more,
        }
        partial = self.path.with_suffix(".partial")
        torch.save(state, partial)
        partial.replace(self.path)


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

"""Train both models: the target on the corpus, the draft on the target's distribution.

Several single-threaded workers train on shared weights. On a CPU that is faster than one process with several
threads, which would wait for one another in every product. Each worker computes the gradient of its own
batch. Then each worker updates its own part of the weights from the mean of all gradients. Weights, gradients
and optimizer state lie in shared memory. A training may be stopped at any time, and continues where it was.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, multiprocessing
from torch.nn import functional

from .data import TOKENS_PER_BATCH, Stream, batch, rows_of
from .generate import generate
from .model import DRAFT, TARGET, LanguageModel, Routing

TARGET_TOKENS, DRAFT_TOKENS, OWN_TOKENS = 7e6, 3e6, 3e5
"""The amounts of the shipped pair."""
_RATE, _ROUTER_RATE, _DECAY = 3e-3, 1e-3, 0.1
_BALANCE, _SCORE_PENALTY, _LOAD_MEMORY = 0.08, 1e-4, 0.97
_WARM_UP_STEPS, _HOLD = 50, 0.2
_SAVE_EVERY_SECONDS, _NOTE_EVERY_STEPS = 120, 10
_ADAM_BETAS, _MOMENTUM = (0.9, 0.95), 0.95
_OWN_LENGTH, _OWN_BATCH = 512, 128
_PROMPT_LENGTHS = (16, 32, 64, 128)
_TEMPERATURES, _TEMPERATURE_SHARES = (0.0, 0.6, 0.8, 1.0), (0.1, 0.2, 0.5, 0.2)

LossOf = Callable[[int], tuple[Tensor, dict[str, float]]]
"""Returns the loss of the batch with a given number, and figures for the log."""


# The optimizer: Muon for hidden matrices, AdamW for everything else


def _is_hidden_matrix(name: str, value: Tensor) -> bool:
    return value.dim() >= 2 and name.rsplit(".", 1)[-1] not in ("token_embd", "output", "ffn_gate_inp")


def orthogonalised(matrices: Tensor, steps: int = 5) -> Tensor:
    """Return the nearest (semi-)orthogonal matrices of a stack [..., m, n], by Newton-Schulz iteration."""
    x = matrices.to(torch.bfloat16)
    is_tall = x.shape[-2] > x.shape[-1]
    x = x.mT if is_tall else x
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = 3.4445 * x + (2.0315 * gram @ gram - 4.7750 * gram) @ x
    return (x.mT if is_tall else x).float()


@torch.no_grad()
def update(name: str, value: Tensor, gradient: Tensor, state: list[Tensor], step: int, factor: float) -> None:
    """Change a weight by its gradient. ``factor`` scales the learning rate, ``step`` counts from 1."""
    rate = factor * (_ROUTER_RATE if name.endswith("ffn_gate_inp") else _RATE)
    if _is_hidden_matrix(name, value):
        (momentum,) = state
        momentum.lerp_(gradient, 1 - _MOMENTUM)
        change = orthogonalised(gradient.lerp(momentum, _MOMENTUM))
        value.mul_(1 - rate * _DECAY).sub_(change, alpha=rate * 0.2 * max(value.shape[-2:]) ** 0.5)
        return
    mean, square = state
    mean.lerp_(gradient, 1 - _ADAM_BETAS[0])
    square.lerp_(gradient.square(), 1 - _ADAM_BETAS[1])
    scale = (1 - _ADAM_BETAS[1] ** step) ** 0.5
    if value.dim() > 1:
        value.mul_(1 - rate * _DECAY * 0.1)
    value.addcdiv_(mean, square.sqrt().div_(scale).add_(1e-8), value=-rate / (1 - _ADAM_BETAS[0] ** step))


def schedule(step: int, steps: int) -> float:
    """Return the learning rate factor: linear warm-up, a plateau, then linear down to zero."""
    if step < _WARM_UP_STEPS:
        return (step + 1) / _WARM_UP_STEPS
    start = max(_HOLD * steps, _WARM_UP_STEPS)
    return min(1.0, max(0.0, (steps - step) / (steps - start)))


# The loop


class Training:
    """A model, its optimizer's state and its checkpoint at ``path``."""

    def __init__(self, path: Path, fresh: Callable[[], LanguageModel]) -> None:
        self.path, self.step, self.seconds = path, 0, 0.0
        self.tokens = 0
        if path.exists():
            self.model, state = LanguageModel.load(path)
            self.optimizer, self.step = state["optimizer"], state["step"]
            self.tokens, self.seconds = state["tokens"], state["seconds"]
        else:
            self.model = fresh()
            self.optimizer = {
                name: [torch.zeros_like(value) for _ in range(1 if _is_hidden_matrix(name, value) else 2)]
                for name, value in self.model.weights.items()
            }

    def run(self, loss_of: LossOf, tokens: int, workers: int) -> None:
        """Train until ``tokens`` tokens are done in all."""
        self._steps, weights = tokens // (TOKENS_PER_BATCH * workers), self.model.weights
        if self.step >= self._steps:
            return
        torch.set_num_threads(1)
        context = multiprocessing.get_context("fork")
        self._barrier = context.Barrier(workers)
        gradients = [
            {name: torch.zeros_like(value).share_memory_() for name, value in weights.items()}
            for _ in range(workers)
        ]
        for tensor in (*weights.values(), *(each for state in self.optimizer.values() for each in state)):
            tensor.share_memory_()
        others = [
            context.Process(target=self._work, args=(rank, gradients, loss_of), daemon=True)
            for rank in range(1, workers)
        ]
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
        for process in others:
            process.start()
        self._work(0, gradients, loss_of)
        for process in others:
            process.join()

    def _work(self, rank: int, gradients: list[dict[str, Tensor]], loss_of: LossOf) -> None:
        workers, weights = len(gradients), self.model.weights
        mine = sorted(weights, key=lambda name: -weights[name].numel())[rank::workers]
        for name, value in weights.items():
            value.requires_grad_()
            value.grad = gradients[rank][name]
        saved, mean_loss = time.monotonic(), 0.0
        while self.step < self._steps:
            begun = time.monotonic()
            loss, figures = loss_of(self.step * workers + rank)
            loss.backward()
            self._barrier.wait()
            factor = schedule(self.step, self._steps)
            self.step += 1
            for name in mine:
                mean = torch.stack([part[name] for part in gradients]).mean(0)
                update(name, weights[name], mean, self.optimizer[name], self.step, factor)
            self._barrier.wait()
            torch._foreach_zero_(list(gradients[rank].values()))
            self.tokens += TOKENS_PER_BATCH * workers
            self.seconds += time.monotonic() - begun
            mean_loss = 0.95 * mean_loss + 0.05 * figures["loss"] if mean_loss else figures["loss"]
            if rank == 0 and self.step % _NOTE_EVERY_STEPS == 0:
                noted = {"seconds": self.seconds, **figures, "loss": mean_loss}
                rounded = {name: round(value, 4) for name, value in noted.items()}
                print(json.dumps({"step": self.step, "tokens": self.tokens, **rounded}), flush=True)
            is_last = self.step == self._steps
            if rank == 0 and (is_last or time.monotonic() - saved > _SAVE_EVERY_SECONDS):
                self._save()
                saved = time.monotonic()

    def _save(self) -> None:
        """Write a checkpoint. The old one stays until the new one is complete."""
        weights = {name: value.detach() for name, value in self.model.weights.items()}
        state = {"form": asdict(self.model.form), "weights": weights, "optimizer": self.optimizer,
                 "step": self.step, "tokens": self.tokens, "seconds": self.seconds}  # fmt: skip
        partial = self.path.with_suffix(".partial")
        torch.save(state, partial)
        partial.replace(self.path)


# The target


def train_target(work: Path, tokens: int, workers: int) -> None:
    """Train for ``tokens`` tokens in all. Write ``target.pt``."""
    torch.manual_seed(0)
    stream = Stream.load(work / "train.npz").tokens
    training = Training(work / "target.pt", lambda: LanguageModel(TARGET))
    load = torch.full((TARGET.layers, TARGET.experts), 1 / TARGET.experts)

    def unevenness(routing: Routing) -> Tensor:
        """Return a penalty that keeps all experts in use: load times mean probability, mean over layers.

        The load is that of some thirty batches, which have many different texts. So each expert gets its
        share, and within one text the router is free to prefer a few experts.
        """
        terms = []
        for layer, (chosen, logits) in enumerate(zip(routing.chosen, routing.logits, strict=True)):
            now = torch.bincount(chosen.flatten(), minlength=TARGET.experts) / chosen.numel()
            load[layer].lerp_(now, 1 - _LOAD_MEMORY)
            terms.append(TARGET.experts * (load[layer].clone() * logits.softmax(-1).mean(0)).sum())
        return torch.stack(terms).mean()

    def loss_of(number: int) -> tuple[Tensor, dict[str, float]]:
        inputs, wanted = batch(stream, 1, number)
        features, routing = training.model.features(inputs)
        loss = functional.cross_entropy(training.model.scores(features).flatten(0, 1), wanted.flatten())
        uneven = unevenness(routing)
        large = torch.stack([logits.logsumexp(-1).square().mean() for logits in routing.logits]).mean()
        figures = {"loss": loss.item(), "uneven": uneven.item(),
                   "lowest_load": load.min().item() * TARGET.experts}  # fmt: skip
        return loss + _BALANCE * uneven + _SCORE_PENALTY * large, figures

    training.run(loss_of, tokens, workers)


# The draft


def _write_part(work: Path, number: int) -> None:
    """Write one part of the target's own text. Its number determines its content."""
    path = work / "own" / f"{number:04}.npy"
    if path.exists():
        return
    torch.set_num_threads(1)
    target, _ = LanguageModel.load(work / "target.pt")
    random, stream = np.random.default_rng((11, number)), Stream.load(work / "train.npz").tokens
    length = int(random.choice(_PROMPT_LENGTHS))
    begins = random.integers(len(stream) - length, size=_OWN_BATCH)
    prompts = torch.from_numpy(rows_of(stream, begins, length))
    temperature = torch.from_numpy(random.choice(_TEMPERATURES, _OWN_BATCH, p=_TEMPERATURE_SHARES)).float()
    written = generate(target, prompts, _OWN_LENGTH - length, temperature=temperature, seed=number)
    np.save(path.with_suffix(".partial.npy"), written.numpy().astype(np.uint16))
    path.with_suffix(".partial.npy").replace(path)
    print(f"the target's own text: part {number}", flush=True)


def own_text(work: Path, tokens: int, workers: int) -> Tensor:
    """Return about ``tokens`` tokens written by the target itself, [N, 512]; kept in the folder ``own``.

    Each row starts with a few tokens of the corpus and continues as the target samples it. Most rows are
    sampled near the demo's default temperature.
    """
    (work / "own").mkdir(exist_ok=True)
    numbers = range(max(1, tokens // (_OWN_LENGTH * _OWN_BATCH)))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # exits the block, so that the pool ends too
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        pool.starmap(_write_part, [(work, number) for number in numbers], chunksize=1)
    parts = [np.load(work / "own" / f"{number:04}.npy") for number in numbers]
    return torch.from_numpy(np.concatenate(parts).astype(np.int64))


def inherit(target: LanguageModel) -> LanguageModel:
    """Return a fresh draft with the target's embedding, output matrix and some of its attention layers."""
    draft, last = LanguageModel(DRAFT), target.form.layers - 1
    for name, value in draft.weights.items():
        source = name
        if name.startswith("blk."):
            _, layer, rest = name.split(".")
            source = f"blk.{round(int(layer) * last / (DRAFT.layers - 1))}.{rest}"
        if source in target.weights:
            value.copy_(target.weights[source])
    return draft


def train_draft(work: Path, tokens: int, own_tokens: int, workers: int) -> None:
    """Train for ``tokens`` tokens in all, every second batch on the target's own text. Write ``draft.pt``."""
    own = own_text(work, own_tokens, workers)
    torch.manual_seed(1)
    target, _ = LanguageModel.load(work / "target.pt")
    stream = Stream.load(work / "train.npz").tokens
    training = Training(work / "draft.pt", lambda: inherit(target))

    def loss_of(number: int) -> tuple[Tensor, dict[str, float]]:
        inputs = batch(stream, 2, number // 2)[0]
        if number % 2:
            rows = np.random.default_rng((3, number)).integers(len(own), size=TOKENS_PER_BATCH // _OWN_LENGTH)
            inputs = own[torch.from_numpy(rows)]
        with torch.no_grad():
            wanted = target.scores(target.features(inputs)[0]).log_softmax(-1)
        given = training.model.scores(training.model.features(inputs)[0]).log_softmax(-1)
        loss = functional.kl_div(given, wanted, reduction="sum", log_target=True) / inputs.numel()
        return loss, {"loss": loss.item()}

    training.run(loss_of, tokens, workers)

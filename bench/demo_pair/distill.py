"""Training of the draft: it learns the target's distribution on the corpus and on the target's own text."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from .config import DRAFT
from .data import TOKENS_PER_STEP, Batches, Stream
from .generate import generate
from .losses import Divergence
from .model import LanguageModel
from .optimizer import Optimizer
from .train import Progress, load_model, note, save, schedule

DEFAULT_TOKENS, DEFAULT_OWN_TOKENS = 10e6, 2e6
_RATE = 3e-3
_OWN_LENGTH, _OWN_BATCH = 512, 256
_PROMPT_LENGTHS = (16, 32, 64, 128)
_TEMPERATURES, _TEMPERATURE_SHARES = (0.0, 0.6, 0.8, 1.0), (0.1, 0.2, 0.5, 0.2)
_SAVE_EVERY_SECONDS = 150


def own_text(work: Path, target: LanguageModel, tokens: int) -> Tensor:
    """At least ``tokens`` tokens written by the target itself, [N, 512]; kept in ``own.npy``.

    Each row starts with a few tokens of the corpus and goes on as the target samples it, most of them
    near the demo's default temperature.
    """
    path = work / "own.npy"
    rows = np.load(path) if path.exists() else np.empty((0, _OWN_LENGTH), np.uint16)
    stream = Stream.load(work / "train.npz").tokens
    while rows.size < tokens:
        random = np.random.default_rng(len(rows))
        length = int(random.choice(_PROMPT_LENGTHS))
        begins = random.integers(len(stream) - length, size=_OWN_BATCH)
        prompts = np.stack([stream[begin : begin + length] for begin in begins]).astype(np.int64)
        temperature = torch.from_numpy(random.choice(_TEMPERATURES, _OWN_BATCH, p=_TEMPERATURE_SHARES)).float()
        written = generate(
            target, torch.from_numpy(prompts), _OWN_LENGTH - length, temperature=temperature, seed=len(rows)
        )
        rows = np.concatenate([rows, written.numpy().astype(np.uint16)])
        np.save(path, rows)
        print(f"the target's own text: {rows.size} tokens", flush=True)
    return torch.from_numpy(rows.astype(np.int64))


def inherit(draft: LanguageModel, target: LanguageModel) -> None:
    """Start the draft from the target's embedding, output matrix and some of its attention layers."""
    last = target.config.layers - 1
    with torch.no_grad():
        draft.embedding.copy_(target.embedding)
        draft.output.copy_(target.output)
        draft.norm.load_state_dict(target.norm.state_dict())
        for index, block in enumerate(draft.blocks):
            source = target.blocks[round(index * last / max(1, len(draft.blocks) - 1))]
            for part in ("attention_norm", "attention", "ffn_norm"):
                getattr(block, part).load_state_dict(getattr(source, part).state_dict())


def distill(work: Path, tokens: int, own_tokens: int) -> None:
    """Train for ``tokens`` tokens in all; writes ``draft.pt`` and ``draft.log``."""
    torch.manual_seed(1)
    target, _ = load_model(work / "target.pt")
    target.requires_grad_(False)
    own = own_text(work, target, own_tokens)
    batches = Batches(Stream.load(work / "train.npz"), seed=2)
    path, progress = work / "draft.pt", Progress()
    if path.exists():
        draft, state = load_model(path)
        optimizer = Optimizer(draft, _RATE, _RATE)
        optimizer.load_state_dict(state["optimizer"])
        progress = Progress(state["step"], state["seconds"])
    else:
        draft = LanguageModel(DRAFT)
        inherit(draft, target)
        optimizer = Optimizer(draft, _RATE, _RATE)
    steps, saved, mean_loss = tokens // TOKENS_PER_STEP, time.monotonic(), 0.0
    output = target.output.to(torch.bfloat16)
    while progress.step < steps:
        begun = time.monotonic()
        inputs = batch(batches, own, progress.step)
        with torch.no_grad():
            wanted, _ = target.features(inputs)
        features, _ = draft.features(inputs)
        scores = draft.output.to(features.dtype)
        loss = Divergence.apply(features.flatten(0, 1), scores, wanted.flatten(0, 1), output)
        loss.backward()
        optimizer.step(schedule(progress.step, steps))
        progress.step += 1
        progress.seconds += time.monotonic() - begun
        mean_loss = loss.item() if mean_loss == 0 else 0.95 * mean_loss + 0.05 * loss.item()
        if progress.step % 20 == 0:
            note(work / "draft.log", step=progress.step, seconds=round(progress.seconds),
                 divergence=round(mean_loss, 4))
        if time.monotonic() - saved > _SAVE_EVERY_SECONDS or progress.step == steps:
            save(path, draft, progress, optimizer=optimizer.state_dict(), own_tokens=own.numel(),
                 finished=progress.step == steps)
            saved = time.monotonic()


def batch(batches: Batches, own: Tensor, step: int) -> Tensor:
    """Inputs of one step: the corpus at even steps, the target's own text at odd ones."""
    if step % 2 == 0 or not len(own):
        return batches.get(step // 2)[0]
    random = np.random.default_rng((3, step))
    rows = random.integers(len(own), size=TOKENS_PER_STEP // _OWN_LENGTH)
    return own[torch.from_numpy(rows)]


def main() -> None:
    """Command line of the draft's training."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--work", type=Path, default=Path("build/demo_pair"))
    parser.add_argument("--tokens", type=float, default=DEFAULT_TOKENS)
    parser.add_argument("--own-tokens", type=float, default=DEFAULT_OWN_TOKENS)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    distill(args.work, int(args.tokens), int(args.own_tokens))


if __name__ == "__main__":
    main()

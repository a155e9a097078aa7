"""Train the draft: it learns the target's distribution on the corpus and on the target's own text."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, multiprocessing

from .config import DRAFT
from .data import TOKENS_PER_BATCH, Batches, Stream
from .generate import generate
from .model import LanguageModel
from .optimizer import Divergence
from .train import Training, load_model

DEFAULT_TOKENS, DEFAULT_OWN_TOKENS = 5.6e6, 4e5
_RATE = 3e-3
_OWN_LENGTH, _OWN_BATCH = 512, 128
_PROMPT_LENGTHS = (16, 32, 64, 128)
_TEMPERATURES, _TEMPERATURE_SHARES = (0.0, 0.6, 0.8, 1.0), (0.1, 0.2, 0.5, 0.2)


def _write_part(work: Path, number: int) -> None:
    """Write one part of the target's own text. Its number determines its content."""
    path = work / "own" / f"{number:04}.npy"
    if path.exists():
        return
    torch.set_num_threads(1)
    target, _ = load_model(work / "target.pt")
    random, stream = np.random.default_rng((11, number)), Stream.load(work / "train.npz").tokens
    length = int(random.choice(_PROMPT_LENGTHS))
    begins = random.integers(len(stream) - length, size=_OWN_BATCH)
    prompts = torch.from_numpy(
        np.stack([stream[begin : begin + length] for begin in begins]).astype(np.int64)
    )
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
    draft, last = LanguageModel(DRAFT), target.config.layers - 1
    with torch.no_grad():
        draft.embedding.copy_(target.embedding)
        draft.output.copy_(target.output)
        draft.norm.load_state_dict(target.norm.state_dict())
        for index, block in enumerate(draft.blocks):
            source = target.blocks[round(index * last / max(1, len(draft.blocks) - 1))]
            for part in ("attention_norm", "attention", "ffn_norm"):
                getattr(block, part).load_state_dict(getattr(source, part).state_dict())
    return draft


def distill(work: Path, tokens: int, own_tokens: int, workers: int) -> None:
    """Train for ``tokens`` tokens in all. Write ``draft.pt`` and ``draft.log``."""
    own = own_text(work, own_tokens, workers)
    torch.manual_seed(1)
    target, _ = load_model(work / "target.pt")
    target.requires_grad_(False)
    batches = Batches(Stream.load(work / "train.npz"), seed=2)
    training = Training(work / "draft.pt", lambda: inherit(target), _RATE, _RATE)
    draft, output = training.model, target.output.to(torch.bfloat16)

    def loss_of(number: int) -> tuple[Tensor, dict[str, float]]:
        inputs = batch(batches, own, number)
        with torch.no_grad():
            wanted, _ = target.features(inputs)
        features, _ = draft.features(inputs)
        scores = draft.output.to(features.dtype)
        loss = Divergence.apply(features.flatten(0, 1), scores, wanted.flatten(0, 1), output)
        return loss, {"loss": loss.item()}

    training.run(loss_of, tokens, workers, own_tokens=own.numel())


def batch(batches: Batches, own: Tensor, number: int) -> Tensor:
    """Return the inputs of one batch: from the corpus, or (at odd numbers) from the target's own text."""
    if number % 2 == 0:
        return batches.get(number // 2)[0]
    rows = np.random.default_rng((3, number)).integers(len(own), size=TOKENS_PER_BATCH // _OWN_LENGTH)
    return own[torch.from_numpy(rows)]


def main() -> None:
    """Run the command line of the draft's training."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--work", type=Path, default=Path("build/demo_pair"))
    parser.add_argument("--tokens", type=float, default=DEFAULT_TOKENS)
    parser.add_argument("--own-tokens", type=float, default=DEFAULT_OWN_TOKENS)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 2)
    args = parser.parse_args()
    distill(args.work, int(args.tokens), int(args.own_tokens), args.workers)


if __name__ == "__main__":
    main()

"""Measure the finished pair, as it is shipped (Q8_0), and write ``results.json``."""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGMLQuantizationType
from torch import Tensor

from . import routing, tokenizer
from .acceptance import accepted_tokens, summarise
from .data import Stream
from .export import rounded
from .generate import DEFAULT_SAMPLING, GREEDY, Sampling, generate
from .losses import CrossEntropy
from .model import LanguageModel, parameter_count
from .training import load_model

RESULTS = Path(__file__).parent / "results.json"
_TEXTS, _PROMPT, _WRITTEN = 64, 96, 416
_PIECES, _PIECE = 64, 1024


def held_out_rows(stream: Stream, count: int, length: int) -> Tensor:
    """Return ``count`` pieces of held-out text at even distances."""
    begins = np.linspace(0, len(stream.tokens) - length - 1, count).astype(int)
    return torch.from_numpy(np.stack([stream.tokens[b : b + length] for b in begins]).astype(np.int64))


@torch.no_grad()
def bits_per_byte(model: LanguageModel, rows: Tensor, token_bytes: Tensor) -> float:
    """Return the bits per byte of all tokens of ``rows`` except the first of each."""
    bits, size = 0.0, int(token_bytes[rows[:, 1:]].sum())
    for row in rows:
        features, _ = model.features(row[None, :-1])
        loss = CrossEntropy.apply(features[0], model.output.to(features.dtype), row[1:])
        bits += loss.item() * (len(row) - 1) / math.log(2)
    return bits / size


def _acceptance(
    target: LanguageModel,
    drafts: dict[str, LanguageModel],
    rows: Tensor,
    sampling: Sampling,
    ways: dict[str, bool],
) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    for name, draft in drafts.items():
        for way, matched in ways.items():
            accepted = accepted_tokens(target, draft, rows, _PROMPT, sampling, matched)
            figures[f"{name} {way}"] = summarise(rows.numpy(), accepted, _PROMPT).to_dict()
    return figures


def _routing(model: LanguageModel, rows: Tensor) -> list[dict[str, Any]]:
    return [layer.to_dict() for layer in routing.measure(model, rows)]


def evaluate(work: Path) -> dict[str, Any]:
    """Return all figures of the pair in ``work``."""
    trained, target_state = load_model(work / "target.pt")
    trained_draft, draft_state = load_model(work / "draft.pt")
    target, draft = rounded(trained), rounded(trained_draft)
    drafts = {"draft": draft, "target as Q4_0": rounded(trained, GGMLQuantizationType.Q4_0)}
    held_out, train = Stream.load(work / "held_out.npz"), Stream.load(work / "train.npz")
    prompts = held_out_rows(held_out, _TEXTS, _PROMPT)
    greedy = generate(target, prompts, _WRITTEN, GREEDY)
    sampled = generate(target, prompts, _WRITTEN, DEFAULT_SAMPLING, seed=1)
    natural = held_out_rows(held_out, _PIECES, _PIECE)
    tokens, _ = tokenizer.vocabulary(tokenizer.load(work / "tokenizer.json"))
    token_bytes = torch.tensor([0 if token == tokenizer.END_OF_TEXT else len(token) for token in tokens])
    return {
        "corpus": {
            "measured_tokens": natural.numel(),
            "training_tokens": len(train.tokens),
            "training_bytes": int(train.byte_counts.sum()),
            "training_files": len(train.names),
            "held_out_tokens": len(held_out.tokens),
            "held_out_bytes": int(held_out.byte_counts.sum()),
            "held_out_files": len(held_out.names),
        },
        "target": _model_figures(target, target_state, bits_per_byte(target, natural, token_bytes)),
        "draft": _model_figures(draft, draft_state, bits_per_byte(draft, natural, token_bytes))
        | {"own_tokens": draft_state["own_tokens"]},
        "acceptance": {
            "greedy": _acceptance(target, drafts, greedy, GREEDY, {"": False}),
            "sampled": _acceptance(
                target,
                drafts,
                sampled,
                DEFAULT_SAMPLING,
                {"by speculative sampling": False, "by llama.cpp's matching": True},
            ),
        },
        "routing": {"held_out": _routing(target, natural[::2]), "own": _routing(target, sampled)},
    }


def _model_figures(model: LanguageModel, state: dict[str, Any], bits: float) -> dict[str, Any]:
    return {
        "config": model.config.to_dict(),
        "parameters": parameter_count(model),
        "tokens": state["tokens"],
        "seconds": round(state["seconds"]),
        "finished": state["finished"],
        "bits_per_byte": bits,
    }


def main() -> None:
    """Run the command line of the measurement."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--work", type=Path, default=Path("build/demo_pair"))
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    args.results.write_text(json.dumps(evaluate(args.work), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

"""Measure the finished pair, as it is shipped (Q8_0), and write ``results.json``."""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGMLQuantizationType
from torch import Tensor

from . import tokenizer
from .acceptance import accepted_tokens, summarise
from .data import Stream
from .export import rounded
from .generate import DEFAULT_SAMPLING, GREEDY, Sampling, generate
from .model import LanguageModel, parameter_count
from .optimizer import CrossEntropy
from .train import load_model

RESULTS = Path(__file__).parent / "results.json"
_TEXTS, _PROMPT, _WRITTEN = 64, 96, 416
_PIECES, _PIECE = 64, 1024
DRAFT_LENGTHS = (1, 3, 5, 8)
_NEAR = 8


@dataclass(frozen=True)
class LayerRouting:
    """Figures of one layer over some text.

    ``entropy`` belongs to the share that each expert has of all activations, in bits (uniform: log2 of the
    number of experts). ``token_entropy`` belongs to the router's probabilities for one token, mean.
    ``lowest_load`` is the rarest expert's share as a part of the uniform share. ``kept`` is the share of a
    token's experts that the previous token used. ``near`` is the share that one of the last 8 tokens used.
    ``growth`` is, for a draft length, the distinct experts of gamma + 1 consecutive tokens over those of one
    token (the paper's a / b).
    """

    entropy: float
    token_entropy: float
    lowest_load: float
    kept: float
    near: float
    growth: dict[int, float]


def _entropy(probability: Tensor) -> Tensor:
    return -(probability * probability.clamp_min(1e-12).log2()).sum(-1)


def measure_layer(chosen: Tensor, probability: Tensor) -> LayerRouting:
    """Return figures from ``chosen`` [B, T, k] and ``probability`` [B, T, E]."""
    batch, length, used = chosen.shape
    experts = probability.shape[-1]
    active = torch.zeros(batch, length, experts, dtype=torch.bool).scatter_(2, chosen, True)
    load = active.float().mean((0, 1)) / used
    recent = torch.stack([active[:, _NEAR - back : length - back] for back in range(1, _NEAR + 1)])
    now = active[:, _NEAR:]
    share = now.sum().item()
    growth = {}
    for gamma in DRAFT_LENGTHS:
        window = active.unfold(1, gamma + 1, 1).any(-1)
        growth[gamma] = window.sum(-1).float().mean().item() / used
    return LayerRouting(
        entropy=_entropy(load).item(),
        token_entropy=_entropy(probability).mean().item(),
        lowest_load=load.min().item() * experts,
        kept=(now & recent[0]).sum().item() / share,
        near=(now & recent.any(0)).sum().item() / share,
        growth=growth,
    )


@torch.no_grad()
def measure_routing(model: LanguageModel, tokens: Tensor) -> list[LayerRouting]:
    """Return figures of every layer over sequences ``tokens`` [B, T]."""
    _, routing = model.features(tokens)
    shape = (*tokens.shape, -1)
    return [
        measure_layer(chosen.view(shape), probability.view(shape))
        for chosen, probability in zip(routing.chosen, routing.probabilities, strict=True)
    ]


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
            figures[f"{name} {way}"] = asdict(summarise(rows.numpy(), accepted, _PROMPT))
    return figures


def _routing(model: LanguageModel, rows: Tensor) -> list[dict[str, Any]]:
    return [asdict(layer) for layer in measure_routing(model, rows)]


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
        "config": asdict(model.config),
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

"""Render the model card from measured figures and the shipped files."""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

from .acceptance import DRAFT_LENGTH, LONGEST_PERIOD, SHORTEST_LOOP
from .data import LICENCE
from .evaluate import DRAFT_LENGTHS, RESULTS
from .generate import DEFAULT_SAMPLING
from .tokenizer import END_OF_TEXT, PRE_TOKENIZER

NAME = "MODEL_CARD.md"

#: Growth of the distinct experts of Qwen3-235B-A22B by draft length: MoE-SpAc, Appendix A.1.
_PAPER_GROWTH = {3: 2.24, 5: 3.20, 8: 4.13}


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _millions(value: float) -> str:
    return f"{value / 1e6:.1f} M"


def _models(results: dict[str, Any], models: Path) -> str:
    rows = []
    for name in ("target", "draft"):
        figures = results[name]
        shape = figures["config"]
        form = (
            f"{shape['layers']} layers, width {shape['width']}, {shape['heads']} heads "
            f"({shape['kv_heads']} for keys and values), "
        )
        if shape["experts"]:
            form += f"{shape['experts']} experts of {shape['ffn']} rows, {shape['experts_used']} per token"
        else:
            form += f"feed-forward of {shape['ffn']} rows"
        size = (models / f"{name}.gguf").stat().st_size
        rows.append(
            [
                f"`{name}.gguf`",
                "qwen3moe" if shape["experts"] else "qwen3",
                form,
                _millions(figures["parameters"]),
                f"{size / 1e6:.1f} MB",
                _millions(figures["tokens"]),
                f"{figures['seconds'] / 60:.0f} min",
                f"{figures['bits_per_byte']:.3f}",
            ]
        )
    head = [
        "file",
        "form",
        "shape",
        "parameters",
        "size (Q8_0)",
        "training tokens",
        "time",
        "bits per byte, held out",
    ]
    return _table(head, rows)


def _acceptance(results: dict[str, Any]) -> str:
    rows = []
    for text, ways in results["acceptance"].items():
        for way, figures in ways.items():
            parts = [figures[part] for part in ("all", "outside", "inside")]
            rates = ["–" if part["steps"] == 0 else f"{part['rate']:.2f}" for part in parts]
            outside = figures["outside"]
            rows.append(
                [
                    f"{text}: {way.strip()}",
                    *rates,
                    f"{outside['tokens_per_step']:.2f}",
                    f"{outside['per_token']:.2f}",
                    f"{100 * figures['loop_share']:.0f} %",
                ]
            )
    head = [
        "text of the target, drafted by",
        "all",
        "outside loops",
        "in loops",
        "tokens per step, outside",
        "agreement per token, outside",
        "text in loops",
    ]
    return _table(head, rows)


def _routing(layers: list[dict[str, Any]]) -> str:
    rows = [
        [
            str(index),
            *(f"{layer[name]:.2f}" for name in ("entropy", "token_entropy", "lowest_load", "kept", "near")),
        ]
        for index, layer in enumerate(layers)
    ]
    head = [
        "layer",
        "entropy of load (bits)",
        "entropy per token (bits)",
        "rarest expert's load",
        "experts of the previous token",
        "experts of the last 8 tokens",
    ]
    return _table(head, rows)


def _mean_growth(layers: list[dict[str, Any]], gamma: int) -> float:
    return sum(layer["growth"][str(gamma)] for layer in layers) / len(layers)


def _growth(results: dict[str, Any]) -> str:
    shape = results["target"]["config"]
    rows = []
    for gamma in DRAFT_LENGTHS:
        share = shape["experts_used"] / shape["experts"]
        random = (1 - (1 - share) ** (gamma + 1)) / share
        paper = f"{_PAPER_GROWTH[gamma]:.2f}" if gamma in _PAPER_GROWTH else "–"
        rows.append(
            [
                str(gamma),
                *(f"{_mean_growth(results['routing'][text], gamma):.2f}" for text in ("held_out", "own")),
                f"{random:.2f}",
                paper,
            ]
        )
    head = [
        "γ",
        "held-out text",
        "the target's own text",
        "random routing",
        "Qwen3-235B-A22B (MoE-SpAc, A.1)",
    ]
    return _table(head, rows)


def _acceptance_section(results: dict[str, Any]) -> str:
    sampling = DEFAULT_SAMPLING
    return f"""## Acceptance at draft length {DRAFT_LENGTH}

Accepted of drafted tokens, over text which the target wrote after held-out prompts: greedy, and sampled
with temperature {sampling.temperature}, top-k {sampling.top_k}, top-p {sampling.top_p},
min-p {sampling.min_p}. A step drafts {DRAFT_LENGTH} tokens and ends at the first refusal. A token is in a
repetition loop when, for a period p of at most {LONGEST_PERIOD} tokens, the last max({SHORTEST_LOOP}, 2p)
tokens each equal the one p earlier. "Speculative sampling": the draft samples, and a token is accepted
with chance min(1, target / draft). "llama.cpp's matching": the draft's best token is accepted where the
target sampled it. "Target as Q4_0" is the target as its own draft, rounded to Q4_0.

{_acceptance(results)}
"""


def _routing_section(results: dict[str, Any]) -> str:
    shape = results["target"]["config"]
    share = shape["experts_used"] / shape["experts"]
    return f"""## Routing

Uniform load would have an entropy of {math.log2(shape["experts"]):.0f} bits. A load of 1.00 is the uniform
share, 0 a dead expert. The last two columns: the share of a token's experts which were among those of the
previous token, and of the last 8 tokens (random routing: {share:.2f} and {1 - (1 - share) ** 8:.2f}).

On held-out text:

{_routing(results["routing"]["held_out"])}

On the target's own text:

{_routing(results["routing"]["own"])}

a / b, the distinct experts of γ + 1 consecutive tokens over those of one token, mean over layers:

{_growth(results)}
"""


def _models_section(results: dict[str, Any], models: Path) -> str:
    corpus, shape, own = results["corpus"], results["target"]["config"], results["draft"]["own_tokens"]
    return f"""# The demo pair

A small Mixture-of-Experts language model and a smaller dense draft for it, trained from nothing by
`tools/demo_pair` on text which may be redistributed. They are there to try speculative decoding and
expert scheduling without a download. They write text that looks like Python and know nothing: no
assistant, nothing to rely on. This card is rendered by `tools/demo_pair/card.py` from
`tools/demo_pair/results.json`.

## Models

{_models(results, models)}

The figures are those of the shipped weights, after rounding to Q8_0. Norms and routers are F32.
Tokenizer: byte-level BPE of {shape["vocab"]} tokens, pre-tokenizer `{PRE_TOKENIZER}`, the same in both;
`{END_OF_TEXT}` begins and ends a text. Context: {shape["context"]} tokens. The time is wall time of the
training loop on two cores shared with other work; it says little about another machine.

## Text and licence

Training text: {LICENCE}.
{corpus["training_files"]} files, {_millions(corpus["training_bytes"])} bytes,
{_millions(corpus["training_tokens"])} tokens. Held out, by name: {corpus["held_out_files"]} files,
{_millions(corpus["held_out_bytes"])} bytes, of which {corpus["measured_tokens"]} tokens at even distances
were measured. The draft learnt the target's distribution (KL divergence), half on the corpus and half
on {_millions(own)} tokens which the target wrote itself. Copyright of the text: Python Software Foundation
and the contributors to Python.
"""


def render(results: dict[str, Any], models: Path) -> str:
    """Return the card's text. ``results`` are those of :func:`evaluate.evaluate`."""
    results = json.loads(json.dumps(results))
    sections = (_models_section(results, models), _acceptance_section(results), _routing_section(results))
    return "\n".join(sections)


def main() -> None:
    """Run the command line of the card."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--models", type=Path, default=Path("python/spac/demo"))
    args = parser.parse_args()
    results = json.loads(args.results.read_text(encoding="utf-8"))
    (args.models / NAME).write_text(render(results, args.models), encoding="utf-8")


if __name__ == "__main__":
    main()

"""Which experts will a layer want, as its router says of an earlier layer's input? Measured on a real model.

    python -m bench.gate_lookahead --prompts FOLDER [--target FILE] [--slots 17% …] [--out FILE]

Generates on the CPU, takes every router's input by llama.cpp's evaluation callback, and asks the router of
the layer d = 1, 2, 3 further on for its experts: with the input as it is (`raw`), with the norm weights
exchanged (`folded`), with the mean of what the layers between add (`shifted`), and with a linear map
learned besides (`fitted`; both learn from the first half of the texts; all are judged on the second).
Beside: `last`, the experts of the step before; `logistic`, the highest probabilities of that scheduler. For
every token as many are predicted as it takes. `absent` is of experts that LRU has not resident: predictions
of residents bring nothing. A step of several tokens joins as many.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import numpy as np

from bench.gate_lookahead.figures import Gates, Told, by_history, demand_of, joined, told, top
from bench.gate_lookahead.hidden_states import FloatArray, Model, Routers
from spac.config import Slots
from spac.errors import SpacError
from spac.scheduler.lru import LruScheduler

DEMO = Path(__file__).resolve().parents[2] / "python" / "spac" / "demo"


def generated(args: argparse.Namespace, routers: Routers) -> tuple[FloatArray, FloatArray, int]:
    """Inputs [T, L, E] and logits [T, L, N] of all texts in turn, sets alternating; where the half begins."""
    sets = [path.read_text().splitlines()[: args.number] for path in sorted(args.prompts.glob("*.jsonl"))]
    lines = [some[i] for i in range(args.number) for some in sets if i < len(some)]
    prompts = [json.loads(line)["turns"][0][:2000] for line in lines]
    if len(prompts) < 2:
        raise ValueError(f"{args.prompts} has fewer than two prompts in .jsonl files")
    model = Model(args.target, routers, 2048, args.threads)
    try:
        texts = [
            list(model.generate(prompt, args.tokens, args.temp, seed)) for seed, prompt in enumerate(prompts)
        ]
    finally:
        model.close()
    both = [(inputs, logits) for text in texts for inputs, logits in text]
    half = sum(len(text) for text in texts[: len(texts) // 2])
    return np.stack([each[0] for each in both]), np.stack([each[1] for each in both]), half


def judged(
    routers: Routers, inputs: FloatArray, logits: FloatArray, half: int, slots: str, tokens: int
) -> list[tuple[str, int, Told]]:
    """Predictor, distance, what it told; in steps of so many tokens."""
    k, used = routers.n_used, top(logits, routers.n_used)
    n_slots = Slots.parse(slots).of(used.shape[1] * used.shape[2])
    resident, probability = by_history(demand_of(used, tokens, k), n_slots, LruScheduler())
    steps, from_step = joined(used, tokens), -(-half // tokens)
    gates = Gates(routers, inputs, logits, slice(0, half))
    rows = []
    for distance in range(1, min(3, used.shape[1] - 1) + 1):
        part = (slice(from_step, None), slice(distance, None))
        for name in ("raw", "folded", "shifted", "fitted"):
            predicted = joined(top(getattr(gates, name)(distance), k), tokens)
            rows.append((name, distance, told(predicted[from_step:], steps[part], resident[part])))
    part = (slice(from_step, None), slice(1, None))
    last = np.zeros_like(used)
    last[tokens:] = used[:-tokens]
    rows.append(("last", 0, told(joined(last, tokens)[part], steps[part], resident[part])))
    n_likely = round(float(steps.sum(2).mean()))
    rows.append(("logistic", 0, told(top(probability, n_likely)[part], steps[part], resident[part])))
    return rows


def page(rows: list[tuple[str, int, Told]]) -> str:
    titles = ("recall", "precision", "absent: recall", "precision", "wrong ones absent")
    widths = [max(10, len(title) + 2) for title in titles]
    lines = [f"{'predictor':10} {'d':>2}" + "".join(f"{t:>{w}}" for t, w in zip(titles, widths, strict=True))]
    for name, distance, each in rows:
        values = zip(vars(each).values(), widths, strict=True)
        lines.append(f"{name:10} {distance or '':>2}" + "".join(f"{value:{w}.1%}" for value, w in values))
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.gate_lookahead", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--prompts", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--target", type=Path, default=DEMO / "target.gguf", metavar="FILE")
    parser.add_argument("--slots", nargs="+", default=["17%", "50%"])
    parser.add_argument("--step-tokens", type=int, nargs="+", default=[1, 5])
    parser.add_argument("--number", type=int, default=8, help="of prompts of every set")
    parser.add_argument("--tokens", type=int, default=200, help="to generate from each")
    parser.add_argument("--temp", type=float, default=0.8)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, help="the tables")
    args = parser.parse_args(argv)
    try:
        routers = Routers.read(args.target)
        inputs, logits, half = generated(args, routers)
        parts = []
        for tokens in args.step_tokens:
            for slots in args.slots:
                title = f"steps of {tokens} tokens, {slots} of the experts resident under LRU"
                parts.append(f"{title}\n\n{page(judged(routers, inputs, logits, half, slots, tokens))}")
    except (ValueError, OSError, SpacError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    n_layer, n_expert = routers.router.shape[:2]
    about = f"{args.target.name}: {n_layer} layers, {routers.n_used} of {n_expert} experts"
    text = f"{about}, {len(inputs)} tokens, the second half judged\n\n" + "\n\n".join(parts)
    print(text)
    if args.out:
        git = ["git", "describe", "--always", "--dirty"]
        commit = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()
        args.out.write_text(f"python -m bench.gate_lookahead, at commit {commit}\n\n{text}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

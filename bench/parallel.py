"""Measure several generations at once: `python -m bench.parallel --target FILE`.

One engine for each number of generations (--parallel) decodes the same prompts, each generation with a prompt
of its own, on the simulated device without slots: all experts are on the CPU, which reads each of them once
for all tokens of a step. The engines run in turns. A row has, as medians over the rounds: tokens per step,
the distinct experts that a layer reads per token, the same for an ideal batch, the ratio of tokens per second
to one generation's in the same round, and the 95th percentile of the time to the first token over all rounds.
The ideal is computed from the routes of each prompt's generation alone: as many tokens of each generation as
a step has in the mean, always of all generations at once. The time is that of decoding all prompts, from the
first token that all have.

--draft FILE drafts, with the governor's lengths. --out writes the page, and the figures beside it as JSON.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import threading
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import perf_counter

import numpy as np

from bench.program import publish, run_program
from bench.provenance import about, where
from spac import demo
from spac.config import EngineConfig, SamplingConfig
from spac.engine import Engine
from spac.machine.arrays import BoolArray

COUNTS = (1, 2, 4, 8, 16)
TEXT = "the sea was grey and a man walked along its edge counting boats that came home late "


@dataclass(frozen=True)
class Row:
    """The figures of one engine in one round."""

    generations: int
    tokens_per_step: float
    experts_per_token: float
    """The distinct experts of a layer in a step, divided by the step's tokens."""
    ideal_experts_per_token: float
    tokens_per_s: float
    first_token_s: list[float]
    """The time to the first token of each generation, from its request on."""


def prompts(n: int) -> list[str]:
    """Return `n` prompts that differ from their beginning on."""
    return [f"{TEXT[at % len(TEXT) :]}{TEXT[: at % len(TEXT)]}{at}" for at in range(n)]


def routes_alone(engine: Engine, prompt: str, n_tokens: int) -> BoolArray:
    """Return the experts of each token of a generation that has the engine for itself, bool [T, L, N]."""
    found: list[BoolArray] = []
    engine.events.after_step.append(lambda step: found.append(step.demand > 0))
    engine.fix_draft_length(0)
    for _ in engine.generate(prompt, n_tokens):
        pass
    engine.fix_draft_length(None)
    engine.events.after_step.pop()
    return np.array(found)


def ideal(routes: list[BoolArray], tokens_per_step: float) -> float:
    """Return the distinct experts of a layer per token of batches that have tokens of all generations."""
    window = max(1, round(tokens_per_step / len(routes)))
    n_steps = min(map(len, routes)) // window
    every = np.stack([each[: n_steps * window] for each in routes])
    steps = every.reshape(len(routes), n_steps, window, *every.shape[2:]).any(axis=(0, 2))
    return float(steps.sum()) / (n_steps * window * len(routes) * steps.shape[1])


def measured(engine: Engine, n: int, n_tokens: int, routes: list[BoolArray]) -> Row:
    """Return the figures of `n` generations of `n_tokens` tokens, which are read by a thread each."""
    experts = engine.experts
    assert experts is not None
    ready, begin = threading.Barrier(n + 1), threading.Barrier(n + 1)
    end = threading.Barrier(n + 1)
    firsts: list[float] = []

    def counts() -> dict[str, int]:
        return engine.between.run(lambda: dict(experts.stats))  # never in the middle of a step

    def read(prompt: str) -> None:
        asked = perf_counter()
        generation = engine.generate(prompt, n_tokens)
        next(generation)
        firsts.append(perf_counter() - asked)
        ready.wait()
        begin.wait()
        for _ in generation:
            pass
        end.wait()

    threads = [threading.Thread(target=read, args=(prompt,)) for prompt in prompts(n)]
    for each in threads:
        each.start()
    ready.wait()
    before = counts()
    begin.wait()
    started = perf_counter()
    end.wait()
    seconds = perf_counter() - started
    for each in threads:
        each.join()
    used = {name: value - before[name] for name, value in counts().items()}
    layers = experts.layers
    n_verified = used["activations"] / sum(layer.n_used for layer in layers)
    per_step = n_verified / (used["blocks"] / len(layers))
    return Row(
        n, per_step, used["distinct"] / len(layers) / n_verified, ideal(routes[:n], per_step),
        n * (n_tokens - 1) / seconds, firsts,
    )  # fmt: skip


def rounds(args: argparse.Namespace) -> list[list[Row]]:
    """Return the rows of every round."""
    engines = []
    try:
        for n in args.counts:
            config = EngineConfig(
                target=args.target, draft=args.draft, device="simulated", slots=0, state="off",
                ctx=256 * max(args.counts), parallel=n, threads=args.threads,
                sampling=SamplingConfig(temp=0.0, ignore_eos=True),
            )  # fmt: skip
            engines.append(Engine(config))
        with Engine(replace(engines[0].config, parallel=1)) as one:
            routes = [routes_alone(one, each, args.tokens) for each in prompts(max(args.counts))]
        return [
            [measured(each, n, args.tokens, routes) for each, n in zip(engines, args.counts, strict=True)]
            for _ in range(args.rounds)
        ]
    finally:
        for each in engines:
            each.close()


def table(found: list[list[Row]], with_times: bool) -> str:
    """Return the medians over the rounds as a Markdown table."""
    lines = [
        "| generations | tokens per step | experts of a layer per token | ideal | tokens/s, ratio "
        "| first token, 95th percentile |",
        "| --- " * 6 + "|",
    ]
    for at, first in enumerate(found[0]):
        rows = [each[at] for each in found]
        ratio = statistics.median(
            row.tokens_per_s / each[0].tokens_per_s for row, each in zip(rows, found, strict=True)
        )
        step = statistics.median(row.tokens_per_step for row in rows)
        experts = statistics.median(row.experts_per_token for row in rows)
        least = statistics.median(row.ideal_experts_per_token for row in rows)
        late = float(np.percentile([each for row in rows for each in row.first_token_s], 95))
        times = f"{ratio:.2f} | {late * 1e3:.0f} ms" if with_times else "not measured | not measured"
        lines.append(f"| {first.generations} | {step:.2f} | {experts:.2f} | {least:.2f} | {times} |")
    return "\n".join(lines)


def run(args: argparse.Namespace) -> None:
    found = rounds(args)
    figures = about("bench.parallel")
    text = f"`{figures['command']}`, {args.rounds} rounds. {where()}\n\n{table(found, not args.no_times)}"
    rows = [[asdict(row) for row in each] for each in found]
    publish(text, args.out, "# Several generations at once", {**figures, "rounds": rows})


def main() -> int:
    """Measure, and return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", type=Path, default=demo.TARGET)
    parser.add_argument("--draft", type=Path)
    parser.add_argument("--counts", type=int, nargs="+", default=list(COUNTS), metavar="N")
    parser.add_argument("--tokens", type=int, default=48, help="tokens of each generation")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--no-times", action="store_true", help="print counts alone")
    parser.add_argument("--out", type=Path)
    return run_program(run, parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())

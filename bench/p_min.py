"""Compare `--draft-p-min auto` with fixed values: `python -m bench.p_min --prompts FOLDER`.

Prompts of every set (a file of JSON objects with "turns", one a line) are continued under the governor
roofline, in one engine, with every value in turns. Each value has a governor of its own, which keeps what it
learned from prompt to prompt. Drafted, accepted and tokens are sums; tokens per second are those of all
measured prompts together. Ratios are of seconds per token, as medians over prompts with a 95 % bootstrap
interval. The first prompts are left out: governors learn there.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from bench.governor.live import interval
from bench.program import run_program
from bench.provenance import about, where
from spac import _core, demo
from spac.config import EngineConfig, SamplingConfig
from spac.engine import Engine
from spac.governor import DraftLengthController, RooflineGovernor

AUTO = "auto"
LONGEST = 2000
"""The most characters of a prompt that are used."""
SKIPPED = 2
"""Prompts that are not counted, at the start of each temperature."""


class FixedThreshold(RooflineGovernor):
    """A governor of draft lengths whose drafts stop below a fixed confidence."""

    value = 0.0

    @property
    def p_min(self) -> float | None:
        """The fixed confidence."""
        return self.value


def governor_of(value: str, longest: int) -> RooflineGovernor:
    """Return a new governor for a value of the option."""
    if value == AUTO:
        return RooflineGovernor(longest, chooses_p_min=True)
    made = FixedThreshold(longest)
    made.value = float(value)
    return made


def run(given: argparse.Namespace) -> None:
    """Run all prompts and print a table for each temperature."""
    sets = [path.read_text().splitlines()[: given.number] for path in sorted(given.prompts.glob("*.jsonl"))]
    lines = chain.from_iterable(zip(*sets, strict=False))
    prompts = [json.loads(line)["turns"][0][:LONGEST] for line in lines]
    config = EngineConfig(
        target=given.target, draft=given.draft, device=given.device, ctx=2048, draft_max=given.longest,
        threads=given.threads, state="off",
    )  # fmt: skip
    values = [AUTO, *given.values]
    tables = []
    with Engine(config) as engine:
        if given.latency_us:
            _core.set_simulated_device(latency_us=given.latency_us)
        for temp in given.temps:
            tables.append(measured(engine, prompts, temp, values, given))
            print(table(tables[-1]), flush=True)
    if given.out is not None:
        given.out.write_text(json.dumps({**about("bench.p_min"), "tables": tables}, indent=1) + "\n")


def measured(
    engine: Engine, prompts: list[str], temp: float, values: list[str], given: argparse.Namespace
) -> dict[str, Any]:
    """Return the sums and the seconds per token of every value at one temperature."""
    governors = {value: governor_of(value, given.longest) for value in values}
    sums: dict[str, Counter[str]] = {value: Counter() for value in values}
    times: dict[str, list[float]] = {value: [] for value in values}
    thresholds: Counter[float] = Counter()
    order = np.random.default_rng(0)
    for i, prompt in enumerate(prompts):
        for value in order.permutation(values).tolist():
            made: list[DraftLengthController] = []
            engine.controller = lambda session, value=value, made=made: (  # type: ignore[method-assign, misc]
                made.append(DraftLengthController(governors[value], session)) or made[0]
            )
            sampling = SamplingConfig(temp=temp, seed=1 + i, ignore_eos=True)
            generation = engine.generate(prompt, given.tokens, sampling=sampling)
            for _piece in generation:
                if value == AUTO:
                    thresholds[governors[value].p_min or 0.0] += 1
            if i < SKIPPED:
                continue
            stats = generation.stats
            sums[value].update(
                drafted=stats.drafted_tokens, accepted=stats.accepted_tokens, tokens=stats.generated_tokens,
                steps=stats.steps,
            )  # fmt: skip
            sums[value]["seconds"] += stats.decode_s  # type: ignore[assignment]
            sums[value]["expected_tokens"] += made[0].expected_tokens  # type: ignore[assignment]
            sums[value]["expected_s"] += made[0].expected_s  # type: ignore[assignment]
            times[value].append(stats.decode_s / stats.generated_tokens)
    auto = np.array(times[AUTO])
    return {
        "temp": temp,
        "sums": sums,
        "ratios": {value: interval(np.array(times[value]) / auto) for value in values},
        "thresholds": {f"{t:.1f}": n for t, n in sorted(thresholds.items())},
    }


def table(figures: dict[str, Any]) -> str:
    """Return the table of one temperature."""
    lines = [
        f"temperature {figures['temp']:g}; pieces of text by the threshold of auto: {figures['thresholds']}",
        "p_min   tokens   steps  drafted  accepted  tokens/s  foretold  auto is faster by [95 %]",
    ]
    for value, each in figures["sums"].items():
        middle, low, high = figures["ratios"][value]
        lines.append(
            f"{value:5}  {each['tokens']:7d} {each['steps']:7d}  {each['drafted']:7d}  "
            f"{each['accepted']:8d}  "
            f"{each['tokens'] / each['seconds']:8.1f}  {each['expected_tokens'] / each['expected_s']:8.1f}  "
            f"{middle:.3f} [{low:.3f}-{high:.3f}]"
        )
    return "\n".join(lines)


def main() -> int:
    """Run the program."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--prompts", type=Path, required=True, help="the folder of the sets")
    parser.add_argument("--number", type=int, default=2, help="prompts of each set")
    parser.add_argument("--tokens", type=int, default=128, help="tokens of a text")
    parser.add_argument("--temps", type=float, nargs="+", default=[0.0, 0.8])
    parser.add_argument("--values", nargs="+", default=["0", "0.25", "0.5", "0.75"], help="fixed values")
    parser.add_argument("--target", type=Path, default=demo.TARGET)
    parser.add_argument("--draft", type=Path, default=demo.DRAFT)
    parser.add_argument("--device", default="simulated")
    parser.add_argument(
        "--latency-us", type=float, default=0.0, help="the simulated device's time per launch"
    )
    parser.add_argument("--longest", type=int, default=16, help="the longest draft")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, help="where to write the figures, as JSON")
    print(where(), flush=True)
    return run_program(run, parser.parse_args())


if __name__ == "__main__":
    raise SystemExit(main())

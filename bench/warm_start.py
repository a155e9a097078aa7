"""Measure what a kept state is worth at the start: `python -m bench.warm_start --prompts FOLDER`.

An engine learns from some prompts of every set (a file of JSON objects with "turns", one a line), and its
state is kept. Then each of the other prompts is continued by new engines: one that starts cold, one that
starts with that state, which has not seen the prompt, and one with a state of this very prompt, the upper
bound. The figures are hit rates of the first tokens, medians over the prompts.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from pathlib import Path
from statistics import median

from bench.provenance import commit, where
from spac import demo
from spac.config import EngineConfig, SamplingConfig, Slots
from spac.engine import Engine

LONGEST = 2000
"""The most characters of a prompt that are used."""


def arguments() -> argparse.Namespace:
    """Return the command line's options."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--target", type=Path, default=demo.TARGET)
    parser.add_argument("--draft", type=Path, default=demo.DRAFT)
    parser.add_argument("--device", default="simulated")
    parser.add_argument("--slots", type=Slots.parse, default=Slots.parse("25%"))
    parser.add_argument("--scheduler", default="logistic")
    parser.add_argument("--prompts", type=Path, required=True, help="folder of .jsonl files, a set each")
    parser.add_argument("--learn", type=int, default=3, help="prompts of each set to learn from")
    parser.add_argument("--number", type=int, default=3, help="other prompts of each set to continue")
    parser.add_argument("--tokens", type=int, nargs="+", default=[16, 64], help="tokens per prompt")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    return parser.parse_args()


def engine_with(given: argparse.Namespace, state: Path | str) -> Engine:
    """Return an engine that starts with a state."""
    sampling = SamplingConfig(temp=0.0, seed=1, ignore_eos=True)
    return Engine(
        EngineConfig(
            target=given.target, draft=given.draft, device=given.device, slots=given.slots, ctx=2048,
            scheduler=given.scheduler, state=state, sampling=sampling,
        )
    )  # fmt: skip


def hit_rates(given: argparse.Namespace, state: Path | str, prompts: list[str]) -> list[float]:
    """Continue prompts in one engine that starts with a state, and return the last one's hit rates.

    There is one for each number of tokens. A number is reached at the end of a step.
    """
    wanted, rates = sorted(given.tokens), list[float]()
    with engine_with(given, state) as engine:
        for prompt in prompts:
            rates.clear()
            generation = engine.generate(prompt, wanted[-1])
            for _ in generation:
                stats = generation.stats
                if stats.generated_tokens >= wanted[len(rates)] and len(rates) < len(wanted) - 1:
                    rates.append(stats.hit_rate)
            rates += [generation.stats.hit_rate] * (len(wanted) - len(rates))
    return rates


def measure(given: argparse.Namespace, folder: Path) -> dict[str, list[list[float]]]:
    """Return the hit rates of the first tokens of all unseen prompts, by the kind of start."""
    learned, unseen = list[str](), list[str]()
    for path in sorted(given.prompts.glob("*.jsonl")):
        texts = [json.loads(line)["turns"][0][:LONGEST] for line in path.read_text().splitlines()]
        learned += texts[: given.learn]
        unseen += texts[given.learn : given.learn + given.number]
    kept, used = folder / "kept", folder / "used"
    hit_rates(given, kept, learned)
    rates: dict[str, list[list[float]]] = {"cold": [], "other prompts": [], "the same prompt": []}
    for prompt in unseen:
        rates["cold"].append(hit_rates(given, "off", [prompt]))
        shutil.copy(kept, used)
        rates["other prompts"].append(hit_rates(given, used, [prompt]))
        used.unlink()
        hit_rates(given, used, [prompt])
        rates["the same prompt"].append(hit_rates(given, used, [prompt]))
        used.unlink()
    return rates


def main() -> None:
    """Print the medians, and write all figures where that is asked for."""
    given = arguments()
    with tempfile.TemporaryDirectory() as folder:
        rates = measure(given, Path(folder))
    n_prompts = len(rates["cold"])
    print(f"{where()}: {given.slots} slots, {given.scheduler}, "
          f"medians over {n_prompts} prompts [lowest to highest], and how many are above cold")  # fmt: skip
    for i, n_tokens in enumerate(sorted(given.tokens)):
        print(f"hit rate of the first {n_tokens} tokens")
        cold = [each[i] for each in rates["cold"]]
        for start, found in rates.items():
            each = [found_rates[i] for found_rates in found]
            above = sum(warm > other for warm, other in zip(each, cold, strict=True))
            print(f"  state of {start:16} {median(each):.1%} [{min(each):.1%} to {max(each):.1%}] {above}")
    if given.json is not None:
        about = {"commit": commit(), "tokens": given.tokens, "slots": str(given.slots), "hit_rates": rates}
        given.json.write_text(json.dumps(about, indent=1) + "\n")


if __name__ == "__main__":
    main()

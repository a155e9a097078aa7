"""Ask what MoE-SpeQ's parts are worth: its speed beside plain caches (Figure 13, Table 4), and E_new (Eq. 3).

    python -m bench.moe_speq speed --prompts FOLDER [--sets NAME …] [--slots 17% 50%] [--out FILE]
    python -m bench.moe_speq misses FOLDER [--slots 17%] [--out FILE]

`speed` runs the bundled target on the simulated device, whose link is as fast as --link says. Systems run in
turns, and the table has the median of the time per token with its range. The plain caches load misses within
their layer (`--miss load`), with as many slots as MoE-SpeQ, and with as much memory: the slots that the
draft's copies would take. `misses` replays `moe-speq` over recordings of `python -m bench.replay_demand
record FOLDER --draft-routes`. It compares the misses of the first 1, 2, … tokens of each verification with
what the governor expected before the step: by shares of use alone, and with the predicted windows.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.ablation.live import read_prompts
from bench.program import write_page
from bench.schedulers.replays import pool_slots_of
from bench.sp_moe.pages import table
from spac import _core
from spac.config import EngineConfig, SamplingConfig
from spac.demo import TARGET
from spac.engine import Engine
from spac.governor.times import Misses
from spac.machine.arrays import Float64Array
from spac.scheduler import Event, Plan, View
from spac.scheduler.demand import Demand
from spac.scheduler.moe_speq import MoeSpeqScheduler
from spac.scheduler.replay import replay

SELF: dict[str, Any] = {"draft_type": "self"}
SYSTEMS: dict[str, dict[str, Any]] = {
    "plain cache, same slots": {"scheduler": "lru", "miss": "load"},
    "plain cache, same memory": {"scheduler": "lru", "miss": "load"},
    "MoE-SpeQ": {**SELF, "scheduler": "moe-speq", "miss": "load"},
    "MoE-SpeQ without prefetching": {**SELF, "scheduler": "lru", "miss": "load"},
    "MoE-SpeQ, misses on the CPU": {**SELF, "scheduler": "moe-speq", "miss": "cpu"},
    "logistic, misses on the CPU, no draft": {"scheduler": "logistic", "miss": "cpu"},
}
SAME_MEMORY = "plain cache, same memory"
WINDOWS = (1, 2, 4, 8)


def config_of(args: argparse.Namespace, options: dict[str, Any]) -> EngineConfig:
    """Return the configuration of a greedy run of the bundled target on the simulated device."""
    return EngineConfig(
        target=TARGET, device="simulated", ctx=1024, threads=1, state="off", draft_length=args.draft_length,
        sampling=SamplingConfig(temp=0.0, ignore_eos=True), **options,
    )  # fmt: skip


def slots_of(args: argparse.Namespace, share: str) -> tuple[int, int]:
    """Return the slots of a share of the experts, and those with the memory of the draft's copies besides."""
    with Engine(config_of(args, {**SELF, "scheduler": "none"})) as engine:
        assert engine.experts is not None
        layers, copies = engine.experts.layers, engine.experts.draft_bytes
    n_expert = sum(layer.n_expert for layer in layers)
    n_slots = round(float(share.rstrip("%")) / 100 * n_expert)
    return n_slots, min(n_expert, n_slots + copies // max(layer.expert_bytes for layer in layers))


def speed(args: argparse.Namespace) -> str:
    """Return the table of times per token by set and memory."""
    _core.set_simulated_device(upload_gb_s=args.link / 1e3)
    try:
        parts = [_speed(args, share) for share in args.slots]
    finally:
        _core.set_simulated_device()
    return (
        f"# MoE-SpeQ: speed (Figure 13, Table 4)\n\n{TARGET.name} on the simulated device, link "
        f"{args.link:g} MB/s; drafts of at most {args.draft_length} tokens, the governor chooses. "
        f"Milliseconds per token: median and range of {args.repeat} runs in turns, {args.number} prompts of "
        f"each set, {args.tokens} tokens each, greedy. All systems wrote the same text.\n\n"
        + "\n\n".join(parts)
    )


def _speed(args: argparse.Namespace, share: str) -> str:
    few, many = slots_of(args, share)
    times: dict[tuple[str, str], list[float]] = {}
    hits: dict[str, list[float]] = {}
    for _ in range(args.repeat):
        for name in args.sets:
            texts = set()
            for system, options in SYSTEMS.items():
                slots = many if system == SAME_MEMORY else few
                ms, hit, text = _run(args, name, {**options, "slots": slots})
                times.setdefault((system, name), []).append(ms)
                hits.setdefault(system, []).append(hit)
                texts.add(text)
            if len(texts) > 1:
                raise AssertionError(f"systems wrote different texts of {name}")
    rows = []
    for system in SYSTEMS:
        each = [np.median(times[system, name]) for name in args.sets]
        base = [np.median(times[SAME_MEMORY, name]) for name in args.sets]
        cells = [_cell(times[system, name]) for name in args.sets]
        ratio = float(np.mean(np.array(base) / np.array(each)))
        slots = many if system == SAME_MEMORY else few
        rows.append([system, str(slots), *cells, f"{ratio:.2f}", f"{np.mean(hits[system]):.1%}"])
    head = ["system", "slots", *args.sets, "speed to same memory", "hits of activations"]
    return f"## {share} of the experts in slots\n\n" + table(head, rows)


def _cell(times: Sequence[float]) -> str:
    return f"{np.median(times):.2f} [{min(times):.2f}, {max(times):.2f}]"


def _run(args: argparse.Namespace, name: str, options: dict[str, Any]) -> tuple[float, float, str]:
    """Return milliseconds per token, hits of activations, and the text of a set's prompts."""
    stats, texts = [], []
    with Engine(config_of(args, options)) as engine:
        for prompt in read_prompts(args.prompts / f"{name}.jsonl", 0, args.number):
            generation = engine.generate(prompt, args.tokens)
            texts.append("".join(generation))
            stats.append(generation.stats)
    ms = 1e3 * sum(each.decode_s for each in stats) / sum(each.generated_tokens for each in stats)
    return ms, float(np.mean([each.hit_rate or 0.0 for each in stats])), "\n".join(texts)


class Watched(MoeSpeqScheduler):
    """Keeps the predicted windows and the residency at the end of every draft."""

    def __init__(self) -> None:
        super().__init__()
        self.windows: list[Float64Array | None] = []

    def on(self, event: Event, view: View) -> Plan | None:
        plan = super().on(event, view)
        if event == Event.DRAFT_END:
            self.windows.append(self.window_misses)
        return plan


def errors(demand: Demand, pool_slots: Sequence[int], max_uploads: int | None) -> dict[str, list[float]]:
    """Return the mean error of the expected misses of windows of WINDOWS tokens, as a share of the misses."""
    assert demand.routes is not None
    subject = Watched()
    resident = replay(subject, demand, pool_slots, max_uploads=max_uploads).resident
    n_longest = int(demand.verified.max())
    found: dict[str, list[float]] = {}
    for name in ("shares of use", "predicted windows"):
        misses = Misses(n_longest)
        wrong, total = np.zeros(len(WINDOWS)), np.zeros(len(WINDOWS))
        for step, counts in enumerate(demand.counts):
            size = int(demand.verified[step])
            real = _misses(demand.routes[step, :, :size], resident[step])
            for i, n in enumerate(WINDOWS):
                if n <= size and step >= len(demand.counts) // 4:  # the first quarter is for learning
                    wrong[i] += abs(misses.expected[n - 1] - real[n - 1])
                    total[i] += real[n - 1]
            misses.add(counts, size)
            misses.calibrate(size, real[-1])
            if name != "shares of use" and (window := subject.windows[step]) is not None:
                misses.foresee(window)
            misses.refresh(resident[step])
        found[name] = (wrong / np.maximum(1, total)).tolist()
    return found


def _misses(routes: Any, resident: Any) -> Float64Array:
    """Return the distinct experts of the first 1 … T tokens that are not resident, float64 [T]."""
    absent = np.zeros((routes.shape[1], *resident.shape), np.bool_)
    layer, token, place = np.nonzero(routes >= 0)
    absent[token, layer, routes[layer, token, place]] = True
    return np.asarray((np.maximum.accumulate(absent) & ~resident).sum(axis=(1, 2)), np.float64)


def misses(args: argparse.Namespace) -> str:
    """Return the table of errors over all recordings of the folder."""
    sets = {path.stem: Demand.load(path) for path in sorted(args.folder.glob("*.npz"))}
    if not sets:
        raise ValueError(f"{args.folder} has no recordings: run `bench.replay_demand record` first")
    each = [errors(demand, pool_slots_of(demand, args.slots), args.max_uploads) for demand in sets.values()]
    rows = [
        [name, *(f"{share:.1%}" for share in np.mean([found[name] for found in each], axis=0))]
        for name in each[0]
    ]
    copies = "all" if args.max_uploads is None else str(args.max_uploads)
    return (
        f"# MoE-SpeQ: expected misses (Eq. 3)\n\nReplays over {', '.join(sets)}; {args.slots} of the experts "
        f"in slots, {copies} copies between two steps. Mean error of E_new before the step, as a share of "
        "the misses, by the tokens of a window.\n\n" + table(["E_new by", *map(str, WINDOWS)], rows)
    )


def main(argv: list[str] | None = None) -> int:
    """Return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.moe_speq", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    commands = parser.add_subparsers(required=True)
    timed = commands.add_parser("speed")
    timed.add_argument("--prompts", type=Path, required=True, help="folder of .jsonl files, a set each")
    timed.add_argument("--sets", nargs="+", default=["gsm8k", "humaneval"])
    timed.add_argument("--slots", nargs="+", default=["17%", "50%"])
    timed.add_argument("--link", type=float, default=200.0, help="of the simulated device, MB/s")
    timed.add_argument("--draft-length", type=int, default=4)
    timed.add_argument("--number", type=int, default=1, help="prompts of each set")
    timed.add_argument("--tokens", type=int, default=48, help="tokens for each prompt")
    timed.add_argument("--repeat", type=int, default=3)
    timed.set_defaults(action=speed)
    counted = commands.add_parser("misses")
    counted.add_argument("folder", type=Path)
    counted.add_argument("--slots", default="17%")
    counted.add_argument("--max-uploads", type=int, help="experts that can be copied between two steps")
    counted.set_defaults(action=misses)
    for each in (timed, counted):
        each.add_argument("--out", type=Path, help="the page, as Markdown")
    return write_page(parser, "bench.moe_speq", argv)


if __name__ == "__main__":
    sys.exit(main())

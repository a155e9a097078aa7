"""Replay schedulers over the demand of real runs, without the model.

    python -m bench.replay_demand record FOLDER --prompts FOLDER [--draft-length 8] [--draft-routes]
    python -m bench.replay_demand compare FOLDER [--slots 17%] [--max-uploads N] [--schedulers NAME ...]

`record` runs the bundled demo pair (or --target and --draft) over files of prompts, one JSON object with
"turns" a line. It keeps the demand of every verification, one file per set. `compare` replays each set under
every scheduler, or under those named with their options. It prints the rate of hits of distinct experts (an
expert counts once per step) by set. Then it prints figures over all sets: hits of distinct experts, as a
share of Belady's bound, hits of activations and uploads per step. Where the draft's own routes were recorded,
it also prints how far they predicted the target's, by layer. With --target-routes, `compare` can replay
`sp-moe`; with --draft-routes, `moe-speq`.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np

from bench.schedulers.replays import BOUNDS, PRINTED, RIVALS, bound_of, pool_slots_of
from spac import scheduler
from spac.config import EngineConfig, SamplingConfig
from spac.engine import Engine
from spac.errors import SpacError
from spac.scheduler.belady import Bound
from spac.scheduler.lookahead_buffer import Fidelity
from spac.scheduler.replay import Demand, Recorder, Replay, replay

DEMO = Path(__file__).resolve().parents[1] / "python" / "spac" / "demo"
ROWS = {
    "w/o SpecUE": "speculative=off",
    "w/o AdaBC": "adapt=off",
    "w/o HetWB": "balance=off",
    "w/o SG-Prefetcher": "prefetch=off",
    "w/o SG-Evictor": "evict=off",
}
"""The rows of MoE-SpAc's Table 4 that are options of the printed system."""
VARIANTS = (
    "static", *RIVALS, "lru", "ewma", "ewma:decay=0.2", "logistic", "logistic:whole=off", "moe-spac",
    "moe-spac:learned=off", PRINTED,
    *(f"{PRINTED},{options}" for options in ROWS.values()),
)  # fmt: skip


def record(given: argparse.Namespace) -> None:
    given.folder.mkdir(parents=True, exist_ok=True)
    recorder = Recorder(
        scheduler.make("static"), draft_routes=given.draft_routes, target_routes=given.target_routes
    )
    config = EngineConfig(
        target=given.target,
        draft=given.draft,
        draft_length=given.draft_length,
        device="simulated",
        slots=1,
        state="off",
        scheduler=recorder,
        ctx=2048,
        sampling=SamplingConfig(seed=1, temp=given.temp, ignore_eos=True),
    )
    with Engine(config) as engine:
        for path in sorted(given.prompts.glob("*.jsonl")):
            recorder.clear()
            for line in path.read_text().splitlines()[given.skip : given.skip + given.number]:
                "".join(engine.generate(json.loads(line)["turns"][0][:2000], given.tokens))
            demand = recorder.demand
            demand.save(given.folder / f"{path.stem}.npz")
            accepted = demand.accepted.sum() / max(1, (demand.verified - 1).sum())
            print(
                f"{path.stem}: {len(demand.counts)} steps, {accepted:.0%} of the drafts accepted", flush=True
            )


def fidelity(sets: dict[str, Demand]) -> str:
    """Return how far the draft's routes predicted the target's, over all sets; "" where they were not
    recorded."""
    drafted = [each for each in sets.values() if each.draft_routes is not None]
    found = [Fidelity.of(each.draft_routes[..., : each.routes.shape[3]], each.routes) for each in drafted]
    if not found:
        return ""
    weight = [each.tokens for each in found]
    lines = {
        "of a token's experts, predicted": "same",
        "tokens with all predicted": "exact",
        "of a step's experts, predicted": "recall",
        "predicted experts that were used": "precision",
    }
    text = "by layer".ljust(32) + "".join(f"{i:6}" for i in range(len(drafted[0].layers))) + "  mean\n"
    for title, name in lines.items():
        mean = np.average([getattr(each, name) for each in found], axis=0, weights=weight)
        text += title.ljust(32) + "".join(f"{share:6.3f}" for share in (*mean, mean.mean())) + "\n"
    return text


def compare(given: argparse.Namespace) -> None:
    sets = {path.stem: Demand.load(path) for path in sorted(given.folder.glob("*.npz"))}
    if not sets:
        raise SystemExit(f"{given.folder} has no recordings: run `record` first")
    rows: dict[str, list[Bound | Replay]] = {name: [] for name in (*BOUNDS, *given.schedulers)}
    for demand in sets.values():
        pool_slots = pool_slots_of(demand, given.slots)
        for name in BOUNDS:
            rows[name].append(bound_of(demand, pool_slots, name))
        for name in given.schedulers:
            found = replay(scheduler.make(name), demand, pool_slots, max_uploads=given.max_uploads)
            rows[name].append(found)
    best = float(np.mean([each.hit_rate_distinct for each in rows["belady"]]))
    n_step = sum(len(demand.counts) for demand in sets.values())
    print(
        "scheduler".ljust(32),
        *(f"{name[:8]:>8}" for name in sets),
        "    mean  /belady  activ.  up/step",
    )
    for name, results in rows.items():
        distinct = [each.hit_rate_distinct for each in results]
        line = f"{name:32} " + " ".join(f"{rate:8.3f}" for rate in distinct)
        line += f" {np.mean(distinct):8.3f} {np.mean(distinct) / best:8.0%}"
        activations = [each.hit_rate for each in results if isinstance(each, Replay)]
        line += f" {np.mean(activations):7.3f}" if activations else " " * 8
        line += f" {sum(each.uploads for each in results) / n_step:8.2f}"
        print(line, flush=True)
    if table := fidelity(sets):
        print(f"\n{table}", end="")


def main() -> None:
    parser = argparse.ArgumentParser(description="Schedulers over recorded demand.")
    commands = parser.add_subparsers(required=True)
    recording = commands.add_parser("record")
    recording.add_argument("folder", type=Path)
    recording.add_argument("--prompts", type=Path, required=True)
    recording.add_argument("--target", type=Path, default=DEMO / "target.gguf")
    recording.add_argument("--draft", type=Path, default=DEMO / "draft.gguf")
    recording.add_argument(
        "--draft-routes",
        action="store_true",
        help="keep the draft's routes too: of a quantized copy of the target (tools.self_draft)",
    )
    recording.add_argument(
        "--target-routes",
        type=int,
        metavar="N",
        help="keep instead what the target's routers choose for the draft's states: N times as many "
        "experts as a token uses, best first",
    )
    recording.add_argument("--draft-length", type=int, default=8)
    recording.add_argument("--temp", type=float, default=0.8, help="of sampling; 0 is greedy")
    recording.add_argument("--number", type=int, default=10, help="prompts of each set")
    recording.add_argument("--skip", type=int, default=0, help="prompts of each set that are left out first")
    recording.add_argument("--tokens", type=int, default=96, help="tokens for each prompt")
    recording.set_defaults(run=record)
    comparing = commands.add_parser("compare")
    comparing.add_argument("folder", type=Path)
    comparing.add_argument("--schedulers", nargs="+", default=VARIANTS, metavar="NAME[:KEY=VALUE,...]")
    comparing.add_argument("--slots", default="17%")
    comparing.add_argument("--max-uploads", type=int, help="experts that can be copied between two steps")
    comparing.set_defaults(run=compare)
    given = parser.parse_args()
    try:
        given.run(given)
    except SpacError as error:
        raise SystemExit(f"error: {error}") from None


if __name__ == "__main__":
    main()

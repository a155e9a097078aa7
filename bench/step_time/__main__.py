"""Predict a step's time on a GPU by a model of machines; this is not a measurement.

    python -m bench.step_time DIR … [--machines NAME …] [--slots 17% …] [--schedulers NAME …] [--out FILE]

DIR are folders of `python -m bench.replay_demand record`, of several draft lengths (with `--target-routes`
also under `sp-moe`). Every recording is run under every scheduler on every machine (`simulation`, `machine`),
with the sizes of Qwen3-30B-A3B and its draft, Q4_K_M. The second half of the steps counts. `layers` is the
reference: llama.cpp's --n-cpu-moe with whole layers in the same memory. Without a draft (γ = 0) the memory of
its weights holds further experts, for all alike. Nothing is loaded inside a step (`bench.schedulers --recall`
does that).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from bench.program import publish, run_program
from bench.provenance import commit
from bench.schedulers.replays import PRINTED, RIVALS
from bench.step_time.machine import MACHINES, PAIRS
from bench.step_time.page import page
from bench.step_time.simulation import Simulation, Spent
from spac import scheduler
from spac.config import Slots
from spac.scheduler.replay import Demand

SCHEDULERS = (
    *RIVALS, "lru", PRINTED, "moe-spac", "logistic", "logistic:whole=off",
)  # fmt: skip


def judge(
    path: Path, machine: str, slots: str, names: Sequence[str], draft: str, n_step: int
) -> dict[str, Any]:
    """Return the rows of one recording on one machine."""
    demand, model = Demand.load(path).part(slice(n_step)), PAIRS[draft]
    note = {"name": path.stem, "kept": None}
    if path.with_suffix(".json").exists():
        note = json.loads(path.with_suffix(".json").read_text())
    gamma, half = int(demand.verified.max()) - 1, len(demand.counts) // 2
    n_expert = sum(layer.n_expert for layer in demand.layers)
    n_slots = Slots.parse(slots).of(n_expert)
    if gamma == 0:
        n_slots = min(n_expert, n_slots + model.draft_bytes // model.expert_bytes)
    subject = Simulation(MACHINES[machine], model, demand, n_slots)
    accepted = demand.accepted[half:].sum() / max(1, (demand.verified[half:] - 1).sum())
    found = {
        "machine": machine, "slots": slots, "name": note["name"], "gamma": gamma, "accepted": float(accepted),
        "agreement": first_token(demand) if gamma else None, "steps": len(demand.counts) - half,
        "n_slots": n_slots, "kept": note["kept"], "layers": _figures(subject.whole_layers(half)),
    }  # fmt: skip
    for name in names:
        subject = Simulation(MACHINES[machine], model, demand, n_slots)
        found[name] = _figures(subject.run(scheduler.make(name), half))
    return found


def first_token(demand: Demand) -> float:
    """Return the chance that a draft's first token is accepted, to 5 %: it does not depend on the length."""
    drafts = demand.accepted[demand.verified > 1]
    return round(float((drafts > 0).mean()) * 20) / 20


def _figures(spent: Spent) -> dict[str, float]:
    step_ms = {
        f"{name}_ms": round(1e3 * getattr(spent, name) / spent.steps, 4)
        for name in ("draft", "dense", "hand_off", "experts", "contention")
    }
    figures = {"rate": spent.rate, "hits": spent.hit_rate, "uploads": spent.uploads / spent.steps}
    return {**{name: round(value, 4) for name, value in figures.items()}, **step_ms}


def main(argv: list[str] | None = None) -> int:
    """Return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.step_time",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folders", type=Path, nargs="+", metavar="DIR")
    parser.add_argument("--machines", nargs="+", default=list(MACHINES), choices=list(MACHINES))
    parser.add_argument("--slots", nargs="+", default=["10%", "17%", "25%", "50%"])
    parser.add_argument("--schedulers", nargs="+", default=SCHEDULERS, metavar="NAME[:KEY=VALUE,...]")
    parser.add_argument("--draft", default="qwen3-4b", choices=list(PAIRS), help="whose speed and size")
    parser.add_argument("--steps", type=int, default=480, help="of each recording, at most")
    parser.add_argument("--out", type=Path, help="the tables; figures beside, as .json")
    parser.add_argument("--jobs", type=int, default=2)
    return run_program(run, parser.parse_args(argv))


def run(args: argparse.Namespace) -> None:
    paths = [path for folder in args.folders for path in sorted(folder.glob("*.npz"))]
    if not paths:
        raise ValueError(
            f"{args.folders[0]} has no recordings: run `python -m bench.replay_demand record` first"
        )
    names = list(args.schedulers)
    jobs = [(path, m, slots) for m in args.machines for slots in args.slots for path in paths]
    with ProcessPoolExecutor(args.jobs) as pool:
        futures = [pool.submit(judge, *job, names, args.draft, args.steps) for job in jobs]
        rows = [future.result() for future in futures]
    rows.sort(key=lambda row: (args.machines.index(row["machine"]), args.slots.index(row["slots"]),
                               row["name"], row["agreement"] or 0, row["gamma"]))  # fmt: skip
    figures = {name: vars(MACHINES[name]) for name in args.machines}
    out = {"machines": figures, "model": vars(PAIRS[args.draft]), "rows": rows}
    title = f"python -m bench.step_time, at commit {commit()}: predictions of a model, no measurement"
    publish(page(rows, names), args.out, title, out)


if __name__ == "__main__":
    sys.exit(main())

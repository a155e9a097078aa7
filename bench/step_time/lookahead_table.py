"""Predict what fetching experts inside a step brings, when routers predict them some layers ahead.

    python -m bench.step_time.lookahead_table DIR … [--machines NAME …] [--slots 17% …] [--recalls R …]
                                              [--decay R LOSS] [--distances D …] [--rules RULE …] [--out FILE]

DIR are folders of `python -m bench.locality record`. The table compares `logistic` with llama.cpp with whole
layers in the same memory, and with the best of the schedulers that fetch between steps. `logistic` has
predictions of every recall, distance and rule (`lookahead`, `predicted_routes`). The figures come from a
model, not from a measurement. The second half of the steps counts.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from bench.program import publish, run_program
from bench.provenance import commit
from bench.step_time.__main__ import first_token
from bench.step_time.lookahead import Lookahead, LookaheadSimulation
from bench.step_time.machine import MACHINES, PAIRS
from bench.step_time.predicted_routes import predict
from bench.step_time.simulation import Simulation
from spac import scheduler
from spac.config import Slots
from spac.scheduler.replay import Demand

TODAY = ("logistic", "moe-spac", "lru")
Row = dict[str, Any]


def judge(path: Path, machines: list[str], slots: list[str], args: argparse.Namespace) -> list[Row]:
    """Return the rows of one recording on all machines and slots."""
    demand, model = Demand.load(path).part(slice(args.steps)), PAIRS[args.draft]
    note = json.loads(path.with_suffix(".json").read_text())
    gamma, half = int(demand.verified.max()) - 1, len(demand.counts) // 2
    n_expert = sum(layer.n_expert for layer in demand.layers)
    recalls = {recall for _, recall in variants(args)}
    predicted = {recall: predict(demand, recall, args.near) for recall in sorted(recalls)}
    rows = []
    for machine in machines:
        for share in slots:
            n_slots = Slots.parse(share).of(n_expert)
            if gamma == 0:
                n_slots = min(n_expert, n_slots + model.draft_bytes // model.expert_bytes)
            plain = Simulation(MACHINES[machine], model, demand, n_slots)
            today = {name: plain.run(scheduler.make(name), half).rate for name in TODAY}
            row: Row = {
                "machine": machine, "slots": share, "name": note["name"], "gamma": gamma,
                "first": first_token(demand) if gamma else None,
                "layers": plain.whole_layers(half).rate, "today": max(today.values()), "by": today,
            }  # fmt: skip
            for how, recall in variants(args):
                given = (MACHINES[machine], model, demand, n_slots, predicted[recall], how)
                row[title(how, recall)] = _figures(LookaheadSimulation(*given), half)
            rows.append(row)
    return rows


def recalls_at(distance: int, args: argparse.Namespace) -> list[float]:
    if args.decay:
        first, loss = args.decay
        return [round(max(0.05, first - loss * (distance - 1)), 3)]
    return list(args.recalls)


def variants(args: argparse.Namespace) -> Iterable[tuple[Lookahead, float]]:
    for rule in args.rules:
        for distance in args.distances:
            for recall in recalls_at(distance, args):
                yield Lookahead(distance, rule, args.cut, at_ids=args.at_ids), recall


def title(how: Lookahead, recall: float) -> str:
    return f"{how.rule} d{how.distance} {recall:.0%}"


def _figures(subject: LookaheadSimulation, half: int) -> Row:
    spent = subject.run(scheduler.make("logistic"), half)
    found = {"rate": spent.rate, "hits": spent.hit_rate}
    for name in ("uploads", "predicted", "urgent", "helped"):
        found[name] = getattr(spent, name) / spent.steps
    return {name: round(value, 4) for name, value in found.items()}


def page(rows: list[Row], titles: list[str]) -> str:
    """Return ratios to the best of today's schedulers: at that draft length, then at each one's best
    length."""
    parts = []
    for machine in dict.fromkeys(row["machine"] for row in rows):
        mine = [row for row in rows if row["machine"] == machine]
        parts.append(_lengths(machine, mine, titles))
        parts.append(_best(machine, mine, titles))
    return "\n\n\n".join(parts)


def _lengths(machine: str, rows: list[Row], titles: list[str]) -> str:
    lines = [f"{machine}: tokens/s of llama.cpp and of today's best, and ratios to the latter at equal γ", "",
             f"{'slots':>5} {'setting':11} {'γ':>2} {'llama':>6} {'today':>6} "
             + "".join(f"{each:>14}" for each in titles)]  # fmt: skip
    for row in rows:
        line = (
            f"{row['slots']:>5} {row['name']:11} {row['gamma']:>2} {row['layers']:6.1f} {row['today']:6.1f} "
        )
        lines.append(line + "".join(f"{row[each]['rate'] / row['today']:14.2f}" for each in titles))
    return "\n".join(lines)


def _best(machine: str, rows: list[Row], titles: list[str]) -> str:
    lines = [f"{machine}: each at its best draft length; ratios to today's best and to llama.cpp's best", "",
             f"{'slots':>5} {'setting':11} {'llama':>6} {'γ':>2} {'today':>6} {'γ':>2} {'':5}"
             + "".join(f"{t:>16}" for t in titles)]  # fmt: skip
    for share, name in dict.fromkeys((row["slots"], row["name"]) for row in rows):
        some = [row for row in rows if (row["slots"], row["name"]) == (share, name)]
        llama, today = (max(some, key=lambda row, k=key: float(row[k])) for key in ("layers", "today"))
        line = (f"{share:>5} {name:11} {llama['layers']:6.1f} {llama['gamma']:>2} {today['today']:6.1f} "
                f"{today['gamma']:>2} {today['today'] / llama['layers']:5.2f}")  # fmt: skip
        for each in titles:
            best = max(some, key=lambda row, k=each: float(row[k]["rate"]))
            rate = best[each]["rate"]
            line += f"{rate / today['today']:.2f} {rate / llama['layers']:.2f} γ{best['gamma']}".rjust(16)
        lines.append(line)
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    """Return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.step_time.lookahead_table", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("folders", type=Path, nargs="+", metavar="DIR")
    parser.add_argument("--machines", nargs="+", default=list(MACHINES), choices=list(MACHINES))
    parser.add_argument("--slots", nargs="+", default=["10%", "17%", "25%", "50%"])
    parser.add_argument("--only", nargs="+", default=["published", "share-0.00"], help="settings' files")
    parser.add_argument("--recalls", type=float, nargs="+", default=[0.5, 0.65, 0.75, 0.85, 1.0])
    parser.add_argument(
        "--decay", type=float, nargs=2, metavar=("R", "LOSS"),
        help="in place of recalls: that of distance 1, and what every further layer takes from it",
    )  # fmt: skip
    parser.add_argument("--distances", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--rules", nargs="+", default=["cut"], choices=["all", "timely", "cut"])
    parser.add_argument("--cut", type=float, default=0.5, help="least probability, of the rule `cut`")
    parser.add_argument("--near", type=float, default=0.0, help="how much errors are neighbours' experts")
    parser.add_argument("--at-ids", action="store_true", help="as if masks waited for the layer's own ids")
    parser.add_argument("--draft", default="qwen3-4b", choices=list(PAIRS))
    parser.add_argument("--steps", type=int, default=480, help="of each recording, at most")
    parser.add_argument("--out", type=Path, help="the tables; figures beside, as .json")
    parser.add_argument("--jobs", type=int, default=2)
    return run_program(run, parser.parse_args(argv))


def run(args: argparse.Namespace) -> None:
    paths = [folder / f"{name}.npz" for folder in args.folders for name in args.only]
    paths = [path for path in paths if path.exists()]
    if not paths:
        raise ValueError(
            f"{args.folders[0]} has none of the recordings: see `python -m bench.locality record`"
        )
    jobs = [(path, [m], [s]) for path in paths for m in args.machines for s in args.slots]
    with ProcessPoolExecutor(args.jobs) as pool:
        futures = [pool.submit(judge, *job, args) for job in jobs]
        rows = [row for future in futures for row in future.result()]
    rows.sort(key=lambda row: (args.machines.index(row["machine"]), args.slots.index(row["slots"]),
                               row["name"], row["gamma"]))  # fmt: skip
    head = f"python -m bench.step_time.lookahead_table, at commit {commit()}"
    head += ": predictions of a model, no measurement"
    publish(page(rows, [title(*each) for each in variants(args)]), args.out, head, {"rows": rows})


if __name__ == "__main__":
    sys.exit(main())

"""Compare schedulers at different localities of routing, on calibrated twins that are run and replayed.

    python -m bench.locality record FOLDER [--only NAME ...] [--tokens 256] [--texts 8] [--draft-length 8]
    python -m bench.locality table FOLDER [--out FILE] [--slots 10% 17% 25%] [--max-uploads N …] [--plot FILE]

`record` writes a narrow twin of Qwen3-30B-A3B (48 layers, 128 experts, 8 used) for every setting of the
drift. It runs the twin with its draft on the simulated device, and keeps the demand of every verification.
Each setting has one file, which is made once. `table` replays the second half of the steps under every
scheduler. `profiled` is the best fixed set, as counted over the first half. Rates are of distinct experts per
step, as shares of Belady's bound. Copies cost nothing, but with --max-uploads only that many fit between two
steps.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from bench.program import run_program
from bench.schedulers.replays import BOUNDS, bound_of, pool_slots_of
from spac import scheduler
from spac.config import EngineConfig, SamplingConfig
from spac.engine import Engine
from spac.scheduler import Scheduler
from spac.scheduler.replay import Demand, Recorder, replay
from spac.scheduler.static import StaticScheduler
from tools.twin.catalog import MODELS
from tools.twin.drift import PUBLISHED, Drift, Locality, solve
from tools.twin.writer import Twin, draft_of, write_twin

MODEL = "qwen3-30b-a3b"
WIDTH, N_VOCAB = 128, 16384
SCHEDULERS = ("lru", "ewma", "moe-spac", "logistic")


def settings() -> dict[str, Drift]:
    """Return the drifts by name.

    They are `published`; slow shares from none to nearly all with its persistence; other persistences at its
    share; and static skew beside a drift of the same correlation over one token.
    """
    published = solve(*PUBLISHED, 128, 8)
    found = {"published": published}
    for share in (0.0, 0.2, 0.4, 0.55, 0.7, 0.85, 0.95):
        found[f"share {share:.2f}"] = replace(published, share=share)
    for persistence in (0.8, 0.9, 0.99):
        found[f"persistence {persistence:.2f}"] = replace(published, persistence=persistence)
    rho = published.share * published.persistence
    for skew in (0.2, 0.4):
        share = (rho - skew) / published.persistence
        found[f"skew {skew:.2f}"] = Drift(share, published.persistence, skew)
    return found


def record(args: argparse.Namespace) -> None:
    args.folder.mkdir(parents=True, exist_ok=True)
    for name, drift in settings().items():
        path = args.folder / f"{name.replace(' ', '-')}.npz"
        if path.exists() or (args.only and name not in args.only):
            continue
        with tempfile.TemporaryDirectory(dir=args.folder) as folder:
            demand, plain = run_pair(Path(folder), drift, args)
        # The file gets its own name in one step, so a file that exists is complete.
        demand.save(path.with_suffix(".tmp.npz"))
        place = Locality.of(plain.counts > 0)
        note = {
            "name": name, "drift": vars(drift), "kept": place.kept, "near": place.near, "load": place.load,
            "growth": place.growth,
            "accepted": float(demand.accepted.sum() / max(1, (demand.verified - 1).sum())),
        }  # fmt: skip
        path.with_suffix(".json").write_text(json.dumps(note) + "\n")
        path.with_suffix(".tmp.npz").replace(path)
        print(f"{name}: {len(demand.counts)} steps, {place.kept:.0%} kept, {place.near:.0%} near", flush=True)


def run_pair(folder: Path, drift: Drift, args: argparse.Namespace) -> tuple[Demand, Demand]:
    """Return the demand of texts from all over the chain with the draft, and of one text without it."""
    model = MODELS[MODEL].narrow(WIDTH, N_VOCAB)
    twin = Twin(MODEL, model, "q8_0", drift)
    draft = draft_of(twin, MODELS["qwen3-4b"].narrow(WIDTH), args.agreement, "q8_0", "draft")
    target_path = write_twin(folder / "target.gguf", twin)
    draft_path = write_twin(folder / "draft.gguf", draft)
    found = []
    for length, n_text in ((args.draft_length, args.texts), (0, 1)):
        recorder = Recorder(scheduler.make("static"))
        config = EngineConfig(
            target=target_path, draft=draft_path, draft_length=length, device="simulated", slots=1,
            ctx=args.tokens + 80, scheduler=recorder, threads=args.threads, state="off",
            sampling=SamplingConfig(temp=0.0, seed=1, ignore_eos=True),
        )  # fmt: skip
        with Engine(config) as engine:
            for text in range(n_text):
                "".join(engine.generate([text * (N_VOCAB // 2) // n_text], args.tokens))
        found.append(recorder.demand)
    return found[0], found[1]


def profiled(demand: Demand, pool_slots: Sequence[int]) -> Scheduler:
    """Return a scheduler with the fixed set of the experts that were used most, in every pool."""
    pools = np.array([layer.pool for layer in demand.layers])
    counts = demand.counts.sum(0)
    chosen: list[tuple[int, int]] = []
    for pool, n_slots in enumerate(pool_slots):
        members = np.flatnonzero(pools == pool)
        best = np.argsort(-counts[members].ravel(), kind="stable")[:n_slots]
        chosen += [(int(members[i // counts.shape[1]]), int(i % counts.shape[1])) for i in best]
    return StaticScheduler(experts=chosen)


def halves(demand: Demand) -> tuple[Demand, Demand]:
    """Return the first and the second half of the steps."""
    middle = len(demand.counts) // 2
    return demand.part(slice(None, middle)), demand.part(slice(middle, None))


def judge(path: Path, slots: str, schedulers: Sequence[str], max_uploads: int | None) -> dict[str, Any]:
    """Return one setting's hits of distinct experts under every scheduler and bound, at one number of
    slots."""
    before, demand = halves(Demand.load(path))
    pool_slots = pool_slots_of(demand, slots)
    found: dict[str, Any] = {"slots": slots, **json.loads(path.with_suffix(".json").read_text())}
    found["steps"] = len(demand.counts)
    for name in BOUNDS:
        result = bound_of(demand, pool_slots, name)
        found[name] = {"distinct": result.hit_rate_distinct, "uploads": result.uploads / len(demand.counts)}
    for name in (*schedulers, "profiled"):
        subject = profiled(before, pool_slots) if name == "profiled" else scheduler.make(name)
        # A fixed set is submitted once, and is resident before the first step.
        run = replay(subject, demand, pool_slots, max_uploads=None if name == "profiled" else max_uploads)
        found[name] = {
            "distinct": run.hit_rate_distinct, "activations": run.hit_rate,
            "uploads": run.uploads / found["steps"],
        }  # fmt: skip
    return found


def table(args: argparse.Namespace) -> None:
    paths = [args.folder / f"{name.replace(' ', '-')}.npz" for name in settings()]
    jobs = [(path, slots) for slots in args.slots for path in paths if path.exists()]
    if not jobs:
        raise ValueError(f"{args.folder} has no recordings: run `record` first")
    names, limits = [*args.schedulers, "profiled"], [None, *args.max_uploads]
    with ProcessPoolExecutor(args.jobs) as pool:
        futures = [
            [pool.submit(judge, path, slots, args.schedulers, limit) for path, slots in jobs]
            for limit in limits
        ]
        found = [[future.result() for future in each] for each in futures]
    text = "\n\n\n".join(page(rows, names, limit) for rows, limit in zip(found, limits, strict=True))
    print(text)
    if args.out:
        commit = subprocess.run(
            ["git", "describe", "--always", "--dirty"], capture_output=True, text=True
        ).stdout
        args.out.write_text(f"python -m bench.locality table, at commit {commit.strip()}\n\n{text}\n")
        values = [{"max_uploads": limit, "rows": rows} for limit, rows in zip(limits, found, strict=True)]
        args.out.with_suffix(".json").write_text(json.dumps(values) + "\n")
    if args.plot:
        plot(found[0], names, args.plot)


def page(rows: list[dict[str, Any]], names: list[str], max_uploads: int | None) -> str:
    """Return the rows as text: hits of distinct experts as shares of Belady's, then uploads per step."""
    limit = "as many uploads as wanted" if max_uploads is None else f"at most {max_uploads} uploads a step"
    widths = {name: max(9, len(name) + 2) for name in names}
    setting = f"{'slots':>5} {'setting':17} {'kept':>5} {'near':>5} {'9/1':>5} {'acc.':>5} {'belady':>7}"
    lines = [
        f"Hits of distinct experts, {limit}: Belady's rate, and shares of it; * is the best scheduler.",
        "kept, near: a token's experts that the last one, and one of the last 8, had; 9/1: experts of 9",
        "tokens over one's; acc.: drafted tokens accepted.",
        "",
        setting + "".join(f"{name:>{width}}" for name, width in widths.items()),
    ]
    for row in rows:
        shares = {name: row[name]["distinct"] / row["belady"]["distinct"] for name in names}
        best = max(shares, key=lambda name: shares[name])
        line = f"{_setting(row)} {row['belady']['distinct']:7.3f}"
        for name, width in widths.items():
            line += f"{shares[name]:{width - 1}.1%}" + ("*" if name == best else " ")
        lines.append(line.rstrip())
    lines += ["", "Uploads per step", "", setting + "".join(f"{name:>{w}}" for name, w in widths.items())]
    for row in rows:
        line = f"{_setting(row)} {row['belady']['uploads']:7.1f}"
        lines.append(line + "".join(f"{row[name]['uploads']:{width}.1f}" for name, width in widths.items()))
    return "\n".join(lines)


def _setting(row: dict[str, Any]) -> str:
    return (
        f"{row['slots']:>5} {row['name']:17} {row['kept']:5.0%} {row['near']:5.0%} {row['growth']['8']:5.2f} "
        f"{row['accepted']:5.0%}"
    )


def plot(rows: list[dict[str, Any]], names: list[str], path: Path) -> None:
    """Draw shares of Belady over the experts kept from token to token, one panel per number of slots."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    budgets = list(dict.fromkeys(row["slots"] for row in rows))
    figure, axes = pyplot.subplots(
        1, len(budgets), figsize=(4 * len(budgets), 3.4), sharey=True, squeeze=False
    )
    for axis, budget in zip(axes[0], budgets, strict=True):
        swept = [r for r in rows if r["slots"] == budget and r["name"].split()[0] in ("share", "published")]
        swept.sort(key=lambda row: float(row["kept"]))
        for name in names:
            shares = [row[name]["distinct"] / row["belady"]["distinct"] for row in swept]
            axis.plot([row["kept"] for row in swept], shares, marker="o", label=name)
        axis.set(title=f"{budget} of the experts resident", xlabel="experts kept from the last token")
        axis.grid(alpha=0.3)
    axes[0][0].set_ylabel("hits, share of Belady's")
    axes[0][-1].legend()
    figure.tight_layout()
    figure.savefig(path)


def main(argv: list[str] | None = None) -> int:
    """Return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.locality",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("record")
    one.add_argument("folder", type=Path)
    one.add_argument("--only", nargs="+", metavar="NAME", help=f"of {', '.join(settings())}")
    one.add_argument("--tokens", type=int, default=256, help="of each text")
    one.add_argument("--texts", type=int, default=8)
    one.add_argument("--draft-length", type=int, default=8)
    one.add_argument("--agreement", type=float, default=0.8, help="tokens whose successor the draft knows")
    one.add_argument("--threads", type=int, default=1)
    one.set_defaults(run=record)
    two = commands.add_parser("table")
    two.add_argument("folder", type=Path)
    two.add_argument("--slots", nargs="+", default=["10%", "17%", "25%"])
    two.add_argument("--schedulers", nargs="+", default=SCHEDULERS, metavar="NAME[:KEY=VALUE,...]")
    two.add_argument(
        "--max-uploads", nargs="*", type=int, default=[], metavar="N",
        help="further tables, for links that copy so many experts between two steps",
    )  # fmt: skip
    two.add_argument("--out", type=Path)
    two.add_argument("--plot", type=Path, help="needs matplotlib")
    two.add_argument("--jobs", type=int, default=2)
    two.set_defaults(run=table)
    args = parser.parse_args(argv)
    return run_program(args.run, args)


if __name__ == "__main__":
    sys.exit(main())

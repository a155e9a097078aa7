"""Judge schedulers on traces of real routing: hits, copies, and a model's step times.

    python -m bench.schedulers TRACE.npz … --out FILE [--slots 17% …] [--windows 1 4 …] [--copies all 8 …]
        [--machines rtx4090 …] [--schedulers NAME …] [--tokens N] [--expert-bytes N …]

A TRACE is a recording of `spac run --record TRACE.npz`, or has the experts of every token (docs/schedulers.md
has the format, bench.schedulers.convert converts published ones). A step accepts a window of tokens. Every
scheduler is replayed with each number of slots, each window, and each link: `--copies` is the number of
experts that the link carries per token between the steps, where copies cost nothing, and `--machines` are
models of machines (simulation.py) whose link runs all the time and shares the memory with the CPU. Their
dense part is that of Qwen3-30B-A3B, and a window of more than one token has a draft of 480 MB.

distinct, activ.: hit rates of distinct experts of a step, and of activations. /belady: `distinct` as a share
of the optimum with loads on demand. copies: per token. step ms, fit: the predicted time of a step, and the
experts that the machine's link carries in it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any

from bench.program import publish, run_program, where
from bench.schedulers.machine import MACHINES, Model
from bench.schedulers.replays import (
    PRINTED,
    RIVALS,
    Figures,
    bound_of,
    pool_slots_of,
    predicted,
    replayed,
)
from bench.schedulers.trace import Trace
from spac import scheduler
from spac.config import Slots
from spac.errors import InputError
from spac.replay import Demand

SCHEDULERS = (
    "static", *RIVALS, "lru", "ewma", PRINTED, "moe-spac", "moe-spac:learned=off", "logistic",
    "logistic:margin=0", "logistic:margin=0.2",
)  # fmt: skip
DRAFT_BYTES = 480_000_000
Row = dict[str, Any]


def judge(
    path: Path, slots: str, window: int, links: Sequence[str], names: Sequence[str], n_token: int | None,
    expert_bytes: int,
) -> list[Row]:  # fmt: skip
    """Return a row for every link and scheduler at one number of slots and one window."""
    trace = read(path, n_token)
    demand = trace.demand(window)
    size = expert_bytes or trace.expert_bytes
    best = bound_of(demand, pool_slots_of(demand, slots)).hit_rate_distinct
    return [
        {"trace": path.stem, "slots": slots, "window": window, "link": link, "scheduler": name,
         "belady": best,
         **asdict(_figures(name, demand, slots, best, link, size, path))}
        for link, name in product(links, names)
    ]  # fmt: skip


def _figures(
    name: str, demand: Demand, slots: str, best: float, link: str, size: int, path: Path
) -> Figures:  # fmt: skip
    if link not in MACHINES:
        return replayed(name, demand, slots, best, None if link == "all" else float(link))
    if not size:
        raise InputError(f"{path} does not say how large an expert is: give --expert-bytes")
    return predicted(name, demand, slots, best, link, Model(size, DRAFT_BYTES))


def read(path: Path, n_token: int | None) -> Trace:
    """Return a trace, or its last `n_token` tokens."""
    trace = Trace.load(path)
    return trace if n_token is None else trace.last(n_token)


def page(rows: Sequence[Row], names: Sequence[str]) -> str:
    """Return shares of the bound by scheduler, then every row."""
    width = max(len(name) for name in names)
    parts = []
    for link in dict.fromkeys(row["link"] for row in rows):
        mine = [row for row in rows if row["link"] == link]
        parts.append(_summary(link, mine, names))
    head = (
        f"{'trace':22} {'slots':>5} {'window':>6} {'link':>8} {'scheduler':{width}} {'distinct':>8} "
        f"{'activ.':>7} "
        f"{'/belady':>8} {'copies':>7} {'step ms':>8} {'fit':>6}"
    )
    parts.append("\n".join([head, *(_line(row, width) for row in rows)]))
    return "\n\n\n".join(parts)


def _summary(link: str, rows: Sequence[Row], names: Sequence[str]) -> str:
    what = {"all": "all copies done between the steps"}.get(link, f"{link} copies per token done")
    what = (
        f"predictions for {link}: step ms"
        if link in MACHINES
        else f"{what}: share of Belady's (copies per token)"
    )
    lines = [what, ""]
    widths = [max(14, len(name) + 2) for name in names]
    lines.append(
        f"{'trace':22} {'slots':>5} {'window':>6} {'belady':>7}"
        + "".join(f"{title:>{width}}" for title, width in zip(names, widths, strict=True))
    )
    cells = {(row["trace"], row["slots"], row["window"], row["scheduler"]): row for row in rows}
    for trace, slots, window in dict.fromkeys(key[:3] for key in cells):
        line = f"{trace:22} {slots:>5} {window:>6} {cells[trace, slots, window, names[0]]['belady']:7.3f}"
        for name, width in zip(names, widths, strict=True):
            row = cells[trace, slots, window, name]
            hits = f"{row['of_bound']:.1%} ({row['copies']:.1f})"
            text = f"{row['step_ms']:.2f}" if link in MACHINES else hits
            line += text.rjust(width)
        lines.append(line)
    return "\n".join(lines)


def _line(row: Row, width: int) -> str:
    machine = row["link"] in MACHINES
    times = f"{row['step_ms']:8.2f} {row['fit']:6.0f}" if machine else f"{'-':>8} {'-':>6}"
    activations = f"{'-':>7}" if machine else f"{row['activations']:7.3f}"
    return (
        f"{row['trace']:22} {row['slots']:>5} {row['window']:>6} {row['link']:>8} {row['scheduler']:{width}} "
        f"{row['distinct']:8.3f} {activations} {row['of_bound']:8.1%} {row['copies']:7.1f} {times}"
    )


def main(argv: list[str] | None = None) -> int:
    """Return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.schedulers", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("traces", type=Path, nargs="+", metavar="TRACE.npz")
    parser.add_argument("--schedulers", nargs="+", default=SCHEDULERS, metavar="NAME[:KEY=VALUE,...]")
    parser.add_argument("--slots", nargs="+", default=["10%", "17%", "25%", "50%"])
    parser.add_argument("--windows", nargs="+", type=int, default=[1, 2, 4, 8], help="tokens of a step")
    parser.add_argument("--copies", nargs="*", default=["all", "32", "8", "2"], help="per token, or `all`")
    parser.add_argument("--machines", nargs="*", default=list(MACHINES), choices=list(MACHINES))
    parser.add_argument("--tokens", type=int, help="of every trace the last ones only")
    parser.add_argument("--expert-bytes", nargs="+", type=int, help="of each trace; for machines")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path, help="the page; its figures beside, as .json")
    return run_program(run, parser.parse_args(argv))


def run(args: argparse.Namespace) -> None:
    check(args)
    links = [*args.copies, *args.machines]
    sizes = args.expert_bytes or [0] * len(args.traces)
    traces = list(zip(args.traces, sizes, strict=True))
    jobs = [
        (path, slots, window, links, args.schedulers, args.tokens, size)
        for (path, size), slots, window in product(traces, args.slots, args.windows)
    ]
    if args.jobs > 1:
        with ProcessPoolExecutor(args.jobs) as pool:
            found = [future.result() for future in [pool.submit(judge, *job) for job in jobs]]
    else:
        found = [judge(*job) for job in jobs]
    rows = [row for each in found for row in each]
    title = f"python -m bench.schedulers {' '.join(str(path.name) for path in args.traces)}, {where()}"
    publish(page(rows, args.schedulers), args.out, title, rows)


def check(args: argparse.Namespace) -> None:
    """Raise InputError for options that cannot be used, before anything runs."""
    for name in args.schedulers:
        subject = scheduler.make(name)
        if subject.routers is not None:
            raise InputError(f"scheduler '{subject.name}' follows a draft, and traces have none")
    if args.tokens is not None and args.tokens < 1:
        raise InputError("--tokens must be at least 1")
    for path, slots in product(args.traces, args.slots):
        trace = read(path, args.tokens)
        Slots.parse(slots).of(trace.experts.shape[1] * trace.n_expert)
    if min(args.windows) < 1:
        raise InputError("--windows are tokens of a step, at least 1")
    for link in args.copies:
        if link != "all" and not (link.replace(".", "", 1).isdigit() and float(link) > 0):
            raise InputError(f"--copies are numbers above 0 or `all`, not '{link}'")
    if args.expert_bytes and len(args.expert_bytes) != len(args.traces):
        raise InputError(f"--expert-bytes needs {len(args.traces)} numbers, one for each trace")


if __name__ == "__main__":
    sys.exit(main())

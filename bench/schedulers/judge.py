"""Judge schedulers on traces of real routing: hits, copies, and a model's step times.

A TRACE is a recording of `spac run --record TRACE.npz`, or has the experts of every token (docs/schedulers.md
has the format). A step accepts a window of tokens. With the window 0, steps are a recording's own
verifications with their rejected tokens, and schedulers that follow a draft see what it recorded of one.
Every scheduler is replayed with each number of slots, each window, and each link: `--copies` is the number of
experts that the link carries per token between the steps, where copies cost nothing, and `--machines` are
models of machines (simulation.py) whose link runs all the time and shares the memory with the CPU. Their
dense part is that of Qwen3-30B-A3B; that of `--model` takes longer by the bytes that it has more. A window of
more than one token has a draft of 480 MB. With `--cards` there are as many slots as docs/quickstart.md
computes for GPUs of these sizes.

distinct, activ.: hit rates of distinct experts of a step, and of activations. /belady: `distinct` as a share
of the optimum with loads on demand. copies: per token. step ms, fit: the predicted time of a step, and the
experts that the machine's link carries in it.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

from bench.page import output, publish
from bench.schedulers.belady import belady
from bench.schedulers.machine import MACHINES, Known, Model
from bench.schedulers.simulation import Simulation
from bench.schedulers.trace import Trace
from spac import _core, scheduler
from spac.config import Slots
from spac.costs import Costs
from spac.errors import InputError
from spac.machine.device_memory import margin
from spac.model.devices import DeviceRoom, fit
from spac.model.known import MODELS, KnownModel
from spac.models.setup import CONTEXT_BYTES
from spac.replay import Demand, replay

SCHEDULERS = (
    "static", "profiled", "mixtral-offloading", "moe-infinity", "adapmoe", "fate", "hybrimoe", "lru", "ewma",
    "moe-spac:paper", "moe-spac", "moe-spac:learned=off", "logistic", "logistic:margin=0",
    "logistic:margin=0.2",
)  # fmt: skip
DRAFT_BYTES = 480_000_000
DENSE_BYTES = 1_050_000_000  # of Qwen3-30B-A3B
Row = dict[str, Any]


def judge(
    path: Path, slots: str, window: int, links: Sequence[str], names: Sequence[str], n_token: int | None,
    expert_bytes: int, dense_bytes: int = DENSE_BYTES,
) -> list[Row]:  # fmt: skip
    """Return a row for every link and scheduler at one number of slots and one window."""
    trace = read(path, n_token)
    demand, size = trace.demand(window) if window else Demand.load(path), expert_bytes or trace.expert_bytes
    if not size and not MACHINES.keys().isdisjoint(links):
        raise InputError(f"{path} does not say how large an expert is: give --expert-bytes")
    shapes = [(layer.n_expert, layer.pool) for layer in demand.layers]
    n_slots = Slots.parse(slots).of(sum(n for n, _ in shapes))
    pool_slots = list(_core.share_out(n_slots, shapes, 1 + max(pool for _, pool in shapes)))
    best = belady(demand.counts, [pool for _, pool in shapes], pool_slots).hit_rate_distinct
    rows: list[Row] = []
    for link, name in product(links, names):
        row = {
            "trace": path.stem,
            "slots": slots,
            "window": window,
            "link": link,
            "scheduler": name,
            "belady": best,
        }
        if link in MACHINES:
            row |= predicted(name, demand, sum(pool_slots), link, Model(size, DRAFT_BYTES), dense_bytes)
        else:
            row |= replayed(name, demand, pool_slots, None if link == "all" else float(link))
        rows.append(row | {"of_bound": row["distinct"] / best})
    return rows


def between(demand: Demand) -> Known:
    """Return the costs of a link that copies between the steps, where a copy costs the CPU nothing.

    The hand-off costs nothing too, so that no layer is made whole: that spares time, and costs hits.
    """
    guessed = Costs.guessed(demand.layers)
    experts = tuple(replace(each, upload_s=0.0) for each in guessed.experts)
    return Known(replace(guessed, experts=experts, hand_off_s=0.0))


def replayed(name: str, demand: Demand, pool_slots: Sequence[int], copies: float | None) -> Row:
    """Return the figures of a replay. copies: the most experts copied per token; None for no limit."""
    n_token = int((demand.accepted + 1).sum())
    most = None if copies is None else max(1, round(copies * n_token / len(demand.counts)))
    found = replay(scheduler.make(name), demand, pool_slots, max_uploads=most, costs=between(demand))
    return {
        "distinct": found.hit_rate_distinct, "activations": found.hit_rate, "copies": found.uploads / n_token,
        "step_ms": None, "fit": None,
    }  # fmt: skip


def predicted(name: str, demand: Demand, n_slots: int, machine: str, model: Model, dense_bytes: int) -> Row:
    """Return the figures of a run on a modelled machine, whose link copies all the time."""
    of, more = MACHINES[machine], dense_bytes - DENSE_BYTES
    of = replace(of, dense_s=of.dense_s + more / of.device)
    spent = Simulation(of, model, demand, n_slots).run(scheduler.make(name), 0)
    step_s = spent.seconds / spent.steps
    return {
        "distinct": spent.hit_rate, "activations": None, "copies": spent.uploads / spent.tokens,
        "step_ms": step_s * 1e3, "fit": step_s * MACHINES[machine].link_busy / model.expert_bytes,
    }  # fmt: skip


def read(path: Path, n_token: int | None) -> Trace:
    """Return a trace, or its last `n_token` tokens."""
    trace = Trace.load(path)
    return trace if n_token is None else trace.last(n_token)


def page(rows: Sequence[Row], names: Sequence[str]) -> str:
    """Return shares of the bound by scheduler, then every row."""
    width = max(len(name) for name in names)
    links = dict.fromkeys(row["link"] for row in rows)
    parts = [_summary(link, [row for row in rows if row["link"] == link], names) for link in links]
    head = (
        f"{'trace':22} {'slots':>5} {'window':>6} {'link':>8} {'scheduler':{width}} {'distinct':>8} "
        f"{'activ.':>7} {'/belady':>8} {'copies':>7} {'step ms':>8} {'fit':>6}"
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


def options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("traces", type=Path, nargs="+", metavar="TRACE.npz")
    add("--schedulers", nargs="+", default=SCHEDULERS, metavar="NAME[:KEY=VALUE,...]")
    add("--slots", nargs="+", default=["10%", "17%", "25%", "50%"])
    add("--windows", nargs="+", type=int, default=[1, 2, 4, 8], help="tokens of a step; 0: as recorded")
    add("--copies", nargs="*", default=["all", "32", "8", "2"], help="per token, or `all`")
    add("--machines", nargs="*", default=list(MACHINES), choices=list(MACHINES))
    add("--tokens", type=int, help="of every trace the last ones only")
    add("--model", choices=[each.name for each in MODELS], help="the traces' model: sizes of its parts")
    add("--cards", nargs="+", type=int, metavar="GIB", help="with --model, in place of --slots")
    add("--expert-bytes", nargs="+", type=int, help="of each trace; for machines")
    add("--jobs", type=int, default=1)
    output(parser)


def run(args: argparse.Namespace) -> None:
    dense_bytes, head = DENSE_BYTES, ""
    if args.model:
        model = next(each for each in MODELS if each.name == args.model)
        args.expert_bytes = [model.expert_bytes // model.n_experts] * len(args.traces)
        dense_bytes = model.device_bytes - model.expert_bytes
        shares = {gib: card_share(model, gib) for gib in args.cards or ()}
        args.slots = [f"{share:.1%}" for share in shares.values() if share > 0] or args.slots
        head = f"{model.name}: " + ", ".join(f"{x:.1%} on {gib} GiB" for gib, x in shares.items()) + "\n\n"
    elif args.cards:
        raise InputError("--cards needs --model")
    check(args)
    links = [*args.copies, *args.machines]
    sizes = args.expert_bytes or [0] * len(args.traces)
    traces = list(zip(args.traces, sizes, strict=True))
    jobs = [
        (path, slots, window, links, args.schedulers, args.tokens, size, dense_bytes)
        for (path, size), slots, window in product(traces, args.slots, args.windows)
    ]
    if args.jobs > 1:
        with ProcessPoolExecutor(args.jobs) as pool:
            found = [future.result() for future in [pool.submit(judge, *job) for job in jobs]]
    else:
        found = [judge(*job) for job in jobs]
    rows = [row for each in found for row in each]
    publish(args, "Schedulers on traces", head + page(rows, args.schedulers), rows)


def card_share(model: KnownModel, gib: int) -> float:
    """Return the share of a model's experts that fit on a GPU beside the rest and a context."""
    size = gib << 30
    room = DeviceRoom((), size, size - margin(size, shares_host_memory=False))
    return fit(model, room, CONTEXT_BYTES).share


def check(args: argparse.Namespace) -> None:
    """Raise InputError for options that cannot be used, before anything runs."""
    for name in args.schedulers:
        subject = scheduler.make(name)
        if subject.routers is not None and any(args.windows):
            raise InputError(f"scheduler '{subject.name}' follows a draft: give recordings and --windows 0")
    if args.tokens is not None and args.tokens < 1:
        raise InputError("--tokens must be at least 1")
    for path, slots in product(args.traces, args.slots):
        trace = read(path, args.tokens)
        Slots.parse(slots).of(trace.experts.shape[1] * trace.n_expert)
    if min(args.windows) < 0:
        raise InputError("--windows are tokens of a step, at least 1, or 0")
    if 0 in args.windows and args.tokens is not None:
        raise InputError("--tokens cannot cut a recording's own steps (--windows 0)")
    for link in args.copies:
        if link != "all" and not (link.replace(".", "", 1).isdigit() and float(link) > 0):
            raise InputError(f"--copies are numbers above 0 or `all`, not '{link}'")
    if args.expert_bytes and len(args.expert_bytes) != len(args.traces):
        raise InputError(f"--expert-bytes needs {len(args.traces)} numbers, one for each trace")

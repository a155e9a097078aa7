"""Show what verifications tell a scheduler that single tokens do not: MoE-SpAc's Figures 4, 7 and 9.

    python -m bench.schedulers.speculation FILE.npz … --out FILE [--windows 9 …] [--slots 17%]
        [--schedulers NAME …] [--tokens N]

A FILE is a trace (docs/schedulers.md) or a recording of `python -m bench.replay_demand record`. A trace is
cut into windows, and all of their tokens count as accepted. A recording has its own verifications, with the
rejected tokens in them.

Reuse (Figure 7): the distinct experts of γ + 1 tokens in a row, as a multiple of those of one token, beside
Ω(γ, α = 0.8), the tokens that a draft of γ is expected to yield (Eq. 1). Drafting pays by Eq. 17 where the
first is smaller.

Utility (Figure 9): what the experts of each utility are used for in the next step. 1 - r_c and r_g are their
shares of the pairs (token, expert) and of the distinct experts at s >= τ, as means over layers, with the mean
over layers of the standard deviation from step to step. f is the frequency at s = τ: mean and median.
accuracy (Figure 4): how often utility >= 1 foretold that the next step uses an expert, or that it does not;
`cold` is the accuracy of foretelling that none is used.

Sensor: hits of the accepted tokens' activations, with as many slots and with the same text. `windows`: the
scheduler sees whole verifications. `tokens`: it sees the same accepted tokens one by one, and its plan is
carried out at the same moments. `alone`: every token is a step of its own, without a draft, so that plans are
carried out after every token. In brackets: copies per token. All copies are done between the steps.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from bench.program import publish, run_program
from bench.provenance import where
from bench.schedulers.replays import PRINTED, between, pool_slots_of
from spac import scheduler
from spac.errors import InputError
from spac.machine.arrays import Float64Array, Int32Array
from spac.scheduler import Event, Plan, Scheduler, View
from spac.scheduler.moe_spac import MoeSpacScheduler
from spac.scheduler.replay import Demand, Replay, replay
from spac.scheduler.trace import Trace

SCHEDULERS = (
    PRINTED,
    f"{PRINTED},adapt=off",
    "moe-spac:learned=off",
    "moe-spac",
    "logistic",
    "ewma",
    "lru",
)
DRAFTS = (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12)
ALPHA = 0.8
Row = dict[str, Any]


class TokenFed(Scheduler):
    """Shows another scheduler the accepted tokens of every verification one by one."""

    name = "token-fed"
    wants_routes = True

    def __init__(self, inner: Scheduler) -> None:
        self._inner = inner

    def on(self, event: Event, view: View) -> Plan | None:
        """Return the plan after the last of the tokens."""
        if event == Event.START:
            return self._inner.on(event, view)
        assert view.routes is not None
        plan = None
        for token in range(view.n_accepted + 1):
            routes = np.ascontiguousarray(view.routes[:, token : token + 1])
            one = replace(
                view, demand=demand_of(routes, view.n_expert), n_verified=1, n_accepted=0, routes=routes
            )
            plan = self._inner.on(event, one) or plan
        return plan


class Watched(Scheduler):
    """Passes all events to MoE-SpAc, and keeps each step's demand by the utility that foretold it."""

    name = "watched"

    def __init__(self, inner: MoeSpacScheduler) -> None:
        self._inner = inner
        self.wants_routes = inner.wants_routes  # type: ignore[misc]
        self.utility: list[Int32Array] = []
        self.demand: list[Int32Array] = []

    @property
    def n_level(self) -> int:
        return self._inner.n_level

    def on(self, event: Event, view: View) -> Plan | None:
        if event == Event.VERIFY_END and view.step:
            self.utility.append(self._inner.utility.copy())
            self.demand.append(view.demand.copy())
        return self._inner.on(event, view)


def demand_of(routes: Int32Array, n_expert: int) -> Int32Array:
    """Return the activations, int32 [L, N], of routes, int32 [L, T, U]."""
    demand = np.zeros((len(routes), n_expert), np.int32)
    layer, token, place = np.nonzero(routes >= 0)
    np.add.at(demand, (layer, routes[layer, token, place]), 1)
    return demand


def reuse(trace: Trace, drafts: Sequence[int]) -> list[float]:
    """Return the distinct experts of γ + 1 tokens as a multiple of one token's, for each γ."""
    distinct = []
    for gamma in drafts:
        demand = trace.demand(gamma + 1)
        whole = demand.counts[demand.verified == gamma + 1]
        distinct.append(float(np.count_nonzero(whole) / max(1, len(whole))))
    return [each / distinct[0] for each in distinct]


def omega(gamma: int, alpha: float) -> float:
    """Return the tokens that a draft of γ is expected to yield (Eq. 1)."""
    return (1 - alpha ** (gamma + 1)) / (1 - alpha)


@dataclass(frozen=True)
class Signal:
    """The counts of what utilities foretold; lists are by level, from 0 or 1 on."""

    on_device: list[tuple[float, float, float, float]]
    """1 - r_c with its deviation, and r_g with its deviation, for τ = 1..K."""
    frequency: list[tuple[float, float, float]]
    """The share of experts, and the mean and median frequency, for s = 0..K."""
    accuracy: float
    cold: float

    @classmethod
    def of(cls, name: str, demand: Demand, pool_slots: Sequence[int]) -> Signal:
        """Return the signal of a replay's second half."""
        made = scheduler.make(name)
        if not isinstance(made, MoeSpacScheduler):
            raise InputError(f"scheduler '{name}' has no utilities")
        watched = Watched(made)
        replay(watched, demand, pool_slots, costs=between(demand))
        half = len(watched.demand) // 2
        utility, used = np.stack(watched.utility[half:]), np.stack(watched.demand[half:])
        levels = range(watched.n_level + 1)
        return cls(
            [_spread(used, utility >= tau) + _spread(used > 0, utility >= tau) for tau in levels[1:]],
            [_frequency(used, utility == s) for s in levels],
            float(np.mean((utility >= 1) == (used > 0))),
            float(np.mean(used == 0)),
        )


def _spread(weights: Any, hot: Any) -> tuple[float, float]:
    """Return mean and deviation of a layer's share of `weights` at the marked experts; means over layers."""
    share: Float64Array = (weights * hot).sum(axis=2) / np.maximum(1, weights.sum(axis=2))
    return float(share.mean()), float(share.std(axis=0).mean())


def _frequency(used: Int32Array, at: Any) -> tuple[float, float, float]:
    some = used[at]
    return (
        float(at.mean()),
        float(some.mean()) if some.size else 0.0,
        float(np.median(some)) if some.size else 0.0,
    )


def accepted_hits(demand: Demand, found: Replay) -> float:
    """Return the share of the accepted tokens' activations that were resident when their step began."""
    assert demand.routes is not None
    routes = demand.routes
    accepted = np.arange(routes.shape[2]) <= demand.accepted[:, None]
    step, layer, token, place = np.nonzero((routes >= 0) & accepted[:, None, :, None])
    return float(found.resident[step, layer, routes[step, layer, token, place]].mean())


def sensor(name: str, demand: Demand, slots: str) -> dict[str, tuple[float, float]]:
    """Return hits and copies per token with windows, with their tokens one by one, and without a draft."""
    single = Trace.of(demand).demand(1)
    n_token = len(single.counts)
    cases = {
        "windows": (scheduler.make(name), demand),
        "tokens": (TokenFed(scheduler.make(name)), demand),
        "alone": (scheduler.make(name), single),
    }
    results = {}
    for case, (subject, steps) in cases.items():
        found = replay(subject, steps, pool_slots_of(steps, slots), costs=between(steps))
        results[case] = accepted_hits(steps, found), found.uploads / n_token
    return results


def read(path: Path, windows: Sequence[int], n_token: int | None) -> Iterator[tuple[str, Demand]]:
    """Yield a recording as it is, or a trace at every window, with a name for it."""
    with np.load(path, allow_pickle=False) as file:
        recorded = "counts" in file
    if recorded:
        yield f"{path.stem}, recorded", Demand.load(path)
        return
    trace = Trace.load(path)
    for window in windows:
        yield (
            f"{path.stem}, {window} tokens",
            (trace if n_token is None else trace.last(n_token)).demand(window),
        )


def judge(title: str, demand: Demand, args: argparse.Namespace) -> Row:
    """Return the figures of one file at one window."""
    trace, pool_slots = Trace.of(demand), pool_slots_of(demand, args.slots)
    names = [name for name in args.schedulers if isinstance(scheduler.make(name), MoeSpacScheduler)]
    return {
        "title": title,
        "tokens": len(trace.experts),
        "verified": float(demand.verified.mean()),
        "accepted": float(demand.accepted.mean() + 1),
        "reuse": reuse(trace, DRAFTS),
        "signals": {name: vars(Signal.of(name, demand, pool_slots)) for name in names},
        "sensor": {name: sensor(name, demand, args.slots) for name in args.schedulers},
    }


def page(rows: Sequence[Row], slots: str) -> str:
    """Return the tables of all files."""
    width = max(len(row["title"]) for row in rows) + 2
    lines = ["Reuse: distinct experts of γ + 1 tokens over those of one token", ""]
    lines.append("γ".ljust(width) + "".join(f"{gamma:6}" for gamma in DRAFTS))
    lines.append(f"Ω(γ, {ALPHA})".ljust(width) + "".join(f"{omega(gamma, ALPHA):6.2f}" for gamma in DRAFTS))
    lines += [row["title"].ljust(width) + "".join(f"{each:6.2f}" for each in row["reuse"]) for row in rows]
    lines += ["", "", f"Sensor: hits of accepted activations (copies per token), {slots} slots", ""]
    lines.append(
        f"{'':{width}}{'scheduler':34}" + "".join(f"{each:>16}" for each in ("windows", "tokens", "alone"))
    )
    for row in rows:
        about = f"{row['title']:{width}}"
        for name, cases in row["sensor"].items():
            cells = "".join(f"{hits:8.1%} ({copies:5.1f})" for hits, copies in cases.values())
            lines.append(f"{about}{name:34}{cells}")
    lines += ["", "", "Utility: what the next step uses (second half of the steps)"]
    for row in rows:
        for name, signal in row["signals"].items():
            lines += [
                "",
                f"{row['title']}, {name}: accuracy {signal['accuracy']:.3f}, cold {signal['cold']:.3f}",
            ]
            lines += [f"{'s, τ':>6}{'experts':>9}{'f mean':>9}{'median':>8}{'1 - r_c':>18}{'r_g':>18}"]
            for s, (share, mean, median) in enumerate(signal["frequency"]):
                line = f"{s:6}{share:9.1%}{mean:9.2f}{median:8.1f}"
                if s:
                    c, c_dev, g, g_dev = signal["on_device"][s - 1]
                    line += f"{c:10.3f} ± {c_dev:.3f}{g:10.3f} ± {g_dev:.3f}"
                lines.append(line)
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    """Return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.schedulers.speculation", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE.npz")
    parser.add_argument("--schedulers", nargs="+", default=SCHEDULERS, metavar="NAME[:KEY=VALUE,...]")
    parser.add_argument("--slots", default="17%")
    parser.add_argument("--windows", nargs="+", type=int, default=[4, 9], help="tokens of a trace's step")
    parser.add_argument("--tokens", type=int, help="of every trace the last ones only")
    parser.add_argument("--out", type=Path, help="the page; its figures beside, as .json")
    return run_program(run, parser.parse_args(argv))


def run(args: argparse.Namespace) -> None:
    if min(args.windows) < 1:
        raise InputError("--windows are tokens of a step, at least 1")
    rows = [
        judge(title, demand, args)
        for path in args.files
        for title, demand in read(path, args.windows, args.tokens)
    ]
    files = " ".join(path.name for path in args.files)
    title = f"python -m bench.schedulers.speculation {files}, {where()}"
    publish(page(rows, args.slots), args.out, title, rows)


if __name__ == "__main__":
    sys.exit(main())

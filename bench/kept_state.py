"""Judge on traces what a kept state is worth at the start of new answers.

    python -m bench.kept_state TRACE.npz … [--slots 17%] [--copies 45] [--test 30] [--first 64 256]

A `logistic` scheduler learns from the first part of a trace. Each sequence of the last part is then replayed
by new schedulers with empty slots: one that starts cold, one that starts as a run does with a kept state, and
others that start with parts of it. "All, as it was" does not make the state fit for a new text. A trace with
fewer sequences than `--test` is cut in the middle: by sequences, or else tokens.

While the prompt is read, the link fills the slots with the experts of the plan, if there is one. Then it
carries `--copies` experts a token. Every step has one token. The figures are hit rates of activations, over
the first tokens of all sequences.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bench.provenance import where
from bench.schedulers.replays import between, pool_slots_of
from spac import scheduler
from spac.machine.arrays import Float64Array
from spac.scheduler.base import Event, Plan, Scheduler, StateArrays, View
from spac.scheduler.replay import Demand, replay
from spac.scheduler.trace import Trace

TABLES = ("table", "seen", "popularity", "popularity_steps")
WEIGHTS = ("weights", "squares")


class _Started(Scheduler):
    """Passes all events to a scheduler that continues from a state and a plan."""

    def __init__(self, inner: Scheduler, state: StateArrays | None, plan: Plan | None) -> None:
        self._inner, self._state, self.plan = inner, state, plan
        self.events, self.wants_routes = inner.events, inner.wants_routes  # type: ignore[misc]

    def on(self, event: Event, view: View) -> Plan | None:
        plan = self._inner.on(event, view)
        if event == Event.START and self._state is not None:
            self._inner.restore({**self._inner.state(), **self._state})
        self.plan = (self.plan if event == Event.START else plan) or plan or self.plan
        return self.plan

    def state(self) -> StateArrays:
        return self._inner.state()


Start = tuple[StateArrays | None, Plan | None]


def starts(learned: StateArrays, plan: Plan, usual: Plan) -> dict[str, Start]:
    """Return the kinds of start by name. `usual` is the plan of the most popular experts."""
    kept = scheduler.make("logistic").for_new_text(learned)

    def part(*names: str) -> StateArrays:
        return {name: kept[name] for name in names}

    return {
        "cold": (None, None),
        "all, as it was": (learned, plan),
        "a run's start": (kept, plan),
        "a run's start, no plan": (kept, None),
        "plan": (None, plan),
        "usual plan": (None, usual),
        "tables, plan": (part(*TABLES), plan),
        "weights, plan": (part(*WEIGHTS, "price"), plan),
    }


def parts_of(trace: Trace, n_test: int) -> tuple[Demand, list[Demand]]:
    """Return the demand to learn from, and the demand of each sequence to start with."""
    n = len(trace.seq_len)
    if n == 1:
        half = len(trace.experts) // 2
        demand = trace.demand()
        return demand.part(slice(half)), [demand.part(slice(half, None))]
    first = n - n_test if n > n_test else n // 2
    learned = trace.sequences(slice(first)).demand()
    return learned, [trace.sequences(slice(i, i + 1)).demand() for i in range(first, n)]


def filling(demand: Demand, n_slots: int, n_copies: int) -> Demand:
    """Return the demand after as many steps without any as the link needs to fill the slots."""
    n = -(-n_slots // n_copies)
    counts = np.concatenate([np.zeros((n, *demand.counts.shape[1:]), np.int32), demand.counts])
    ones = np.ones(n, np.int32)
    return Demand(
        demand.layers, counts, np.concatenate([ones, demand.verified]),
        np.concatenate([0 * ones, demand.accepted]),
    )  # fmt: skip


def hits_of(demand: Demand, start: Start, slots: str, n_copies: int) -> Float64Array:
    """Return the hits and the activations of every token, float64 [T, 2]."""
    pool_slots = pool_slots_of(demand, slots)
    filled = filling(demand, sum(pool_slots), n_copies)
    started = _Started(scheduler.make("logistic"), *start)
    found = replay(started, filled, pool_slots, max_uploads=n_copies, costs=between(demand))
    hit = np.where(found.resident, filled.counts, 0).sum(axis=(1, 2))
    n = len(demand.counts)
    return np.stack([hit[-n:], demand.counts.sum(axis=(1, 2))], axis=1).astype(np.float64)


def learn(demand: Demand, slots: str, n_copies: int) -> tuple[StateArrays, Plan, Plan]:
    """Return what a scheduler learned from the demand, its last plan, and a plan of the usual experts."""
    started = _Started(scheduler.make("logistic"), None, None)
    pool_slots = pool_slots_of(demand, slots)
    replay(started, demand, pool_slots, max_uploads=n_copies, costs=between(demand))
    share = (demand.counts > 0).mean(axis=0)
    priority = np.rint(share * (1 << 20)).astype(np.int32)
    least = np.sort(priority.ravel())[-sum(pool_slots)]
    assert started.plan is not None
    return started.state(), started.plan, Plan(priority, np.full(len(priority), max(1, least), np.int32))


def judge(path: Path, slots: str, n_copies: int, n_test: int, first: Sequence[int]) -> str:
    """Return a table of hit rates for one trace."""
    learned, tests = parts_of(Trace.load(path), n_test)
    lines = [f"{path.stem}: learned from {len(learned.counts)} tokens, {len(tests)} starts"]
    rates: dict[str, list[Float64Array]] = {}
    for name, start in starts(*learn(learned, slots, n_copies)).items():
        rates[name] = [hits_of(demand, start, slots, n_copies) for demand in tests]
    for name, each in rates.items():
        columns = []
        for n in [*first, None]:
            hit, wanted = np.sum([found[:n].sum(axis=0) for found in each], axis=0)
            better = [f[:n, 0].sum() > c[:n, 0].sum() for f, c in zip(each, rates["cold"], strict=True)]
            columns.append(f"{hit / wanted:7.1%} ({sum(better):2})")
        lines.append(f"  {name:28}" + "".join(columns))
    return "\n".join(lines)


def main() -> None:
    """Print a table for every trace."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("traces", type=Path, nargs="+")
    parser.add_argument("--slots", default="17%")
    parser.add_argument("--copies", type=int, default=45, help="experts that the link carries a token")
    parser.add_argument("--test", type=int, default=30, help="sequences to start with, the last ones")
    parser.add_argument("--first", type=int, nargs="+", default=[64, 256])
    given = parser.parse_args()
    print(f"{where()}: {given.slots} slots, {given.copies} copies a token; hit rates of the first "
          f"{', '.join(map(str, given.first))} and all tokens (sequences above cold)")  # fmt: skip
    for path in given.traces:
        print(judge(path, given.slots, given.copies, given.test, given.first), flush=True)


if __name__ == "__main__":
    main()

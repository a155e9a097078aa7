"""Measure the time that a scheduler takes after a verification, by the number of experts.

The demand is random and drifts, 17 % of the experts are resident, and costs are guessed. Some steps look at
more than others do. So the program prints the mean of 16 steps in a row, each at its quietest tenth, in µs.
`--cold` puts other data into the caches before every step, as a verification does.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace
from time import perf_counter_ns

import numpy as np

from bench.page import output, publish, table
from bench.schedulers.machine import Known
from spac import scheduler
from spac.costs import Costs
from spac.scheduler import Event, Layer, View

SHARE, EXPERT_BYTES = 0.17, 2_650_000
WARM_UP, STEPS, ROUNDS = 32, 64, 8
OTHER_BYTES = 48 << 20


def views(n_layer: int, n_expert: int, n_used: int, n_token: int) -> Iterator[View]:
    """Yield the view of START, then one for each of `STEPS` steps. Residents are drawn anew in each."""
    rng, shape = np.random.default_rng(0), (n_layer, n_expert)
    layers = tuple(Layer(f"layer {i}", n_expert, n_used, EXPERT_BYTES, 0) for i in range(n_layer))
    taste, empty = rng.gumbel(size=shape) * 2, np.zeros(shape, np.int32)
    slots = np.array([int(SHARE * empty.size)], np.int32)
    first = View(layers, slots, empty - 1, empty, costs=Known(Costs.guessed(layers)))
    yield first
    for step in range(STEPS):
        taste = 0.95 * taste + 0.3 * rng.gumbel(size=shape)
        scores = taste[:, None] + rng.gumbel(size=(n_layer, n_token, n_expert))
        routes = np.argpartition(-scores, n_used, axis=2)[:, :, :n_used].astype(np.int32)
        demand = np.zeros_like(empty)
        np.add.at(demand, (np.arange(n_layer)[:, None, None], routes), 1)
        yield replace(
            first, demand=demand, slot_of=np.where(rng.random(shape) < SHARE, 0, -1).astype(np.int32),
            step=step, n_drafted=n_token - 1, n_verified=n_token, n_accepted=int(rng.integers(n_token)),
            routes=np.ascontiguousarray(routes),
        )  # fmt: skip


def step_us(name: str, n_layer: int, n_expert: int, n_used: int, n_token: int, *, cold: bool) -> float:
    """Return the microseconds of a step."""
    start, *steps = views(n_layer, n_expert, n_used, n_token)
    subject, others, took = scheduler.make(name), np.zeros(OTHER_BYTES // 8), []
    subject.on(Event.START, start)
    for view in steps * ROUNDS:
        if cold:
            others += 1
        begun = perf_counter_ns()
        subject.on(Event.VERIFY_END, view)
        took.append((perf_counter_ns() - begun) / 1e3)
    return float(np.percentile(np.array(took[WARM_UP:]).reshape(-1, 16), 10, axis=0).mean())


def options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--schedulers", nargs="+", default=["logistic", "lru"], metavar="NAME[:KEY=VALUE,...]")
    add("--layers", type=int, default=48)
    add("--experts", type=int, nargs="+", default=[128, 256, 512])
    add("--used", type=int, default=8)
    add("--tokens", type=int, default=4, help="of a step")
    add("--cold", action="store_true", help="other data in the caches before every step")
    output(parser)


def run(args: argparse.Namespace) -> None:
    shape = (args.used, args.tokens)
    found = {
        name: [step_us(name, args.layers, n, *shape, cold=args.cold) for n in args.experts]
        for name in args.schedulers
    }
    head = ("µs a step", *(f"{args.layers} × {n}" for n in args.experts))
    rows = [[name, *(f"{each:.0f}" for each in times)] for name, times in found.items()]
    publish(args, "The policy's time", table(head, rows), found)

"""How long a scheduler thinks per step: `python bench/scheduler_step.py [--layers 48] [--experts 128]`.

Random demand that drifts from step to step, top-8 routing of 9 tokens, 17 % of the experts resident, costs
guessed. Prints the median and the 90th percentile over the steps, in µs: of the estimator alone, of the
balancer alone, and of every scheduler's whole `on("verify_end")`. Every fourth step looks for layers to make
whole as well.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter_ns

import numpy as np

from spac import scheduler
from spac.costs import Costs
from spac.scheduler import Event, Layer, View
from spac.scheduler.balancer import Averages, Levels, Pools, Slots, Times, best_first, solve
from spac.scheduler.cost import UnitCosts
from spac.scheduler.utility import UtilityEstimator

SHARE, N_TOKEN, N_USED = 0.17, 9, 8
EXPERT_BYTES = 2_650_000


@dataclass(frozen=True)
class Known:
    """Costs that stay."""

    costs: Costs


def views(n_layer: int, n_expert: int, n_step: int) -> Iterator[View]:
    """What a scheduler sees in `n_step` steps; residents are drawn anew in each."""
    rng = np.random.default_rng(0)
    layers = tuple(Layer(f"layer {i}", n_expert, N_USED, EXPERT_BYTES, 0) for i in range(n_layer))
    taste = rng.gumbel(size=(n_layer, n_expert)) * 2
    empty = np.zeros((n_layer, n_expert), np.int32)
    slots = np.array([int(SHARE * n_layer * n_expert)], np.int32)
    first = View(layers, slots, empty - 1, empty, costs=Known(Costs.guessed(layers)))
    yield first
    for step in range(n_step):
        taste = 0.95 * taste + 0.3 * rng.gumbel(size=taste.shape)
        scores = taste[None] + rng.gumbel(size=(N_TOKEN, *taste.shape))
        chosen = np.argpartition(-scores, N_USED, axis=2)[:, :, :N_USED]
        demand = np.zeros_like(empty)
        np.add.at(demand, (np.arange(n_layer)[None, :, None], chosen), 1)
        slot_of = np.where(rng.random(empty.shape) < SHARE, 0, -1).astype(np.int32)
        yield replace(
            first, demand=demand, slot_of=slot_of, step=step, n_drafted=N_TOKEN - 1, n_verified=N_TOKEN,
            n_accepted=int(rng.integers(N_TOKEN)),
            routes=np.ascontiguousarray(chosen.transpose(1, 0, 2), np.int32),
        )  # fmt: skip


def timed(name: str, calls: Iterable[Callable[[], object]]) -> None:
    times = []
    for call in calls:
        start = perf_counter_ns()
        call()
        times.append((perf_counter_ns() - start) / 1000)
    print(f"{name:12} median {np.median(times):7.0f} µs   90 % {np.percentile(times, 90):7.0f} µs")


def main() -> None:
    parser = argparse.ArgumentParser(description="Times one step of every scheduler.")
    parser.add_argument("--layers", type=int, default=48)
    parser.add_argument("--experts", type=int, default=128)
    parser.add_argument("--steps", type=int, default=200)
    given = parser.parse_args()
    start, *steps = views(given.layers, given.experts, given.steps)
    print(f"{given.layers} layers of {given.experts} experts, {given.steps} steps")

    estimator = UtilityEstimator(start.exists)
    timed("estimator", (partial(estimator.observe, view.demand, view.n_verified) for view in steps))

    averages = Averages(start.n_layer, 4)
    times = Times.of((UnitCosts.guessed(EXPERT_BYTES),) * start.n_layer)
    pools = Pools(np.zeros(start.n_layer, np.int32), start.pool_slots)

    def balance(view: View) -> None:
        levels = Levels(estimator.utility, 4)
        averages.observe(levels, view.demand)
        slots = Slots.of(levels, view.slot_of >= 0, pools)
        solve(best_first(averages, slots, times, view.n_drafted))

    timed("balancer", (partial(balance, view) for view in steps))
    for name in scheduler.names():
        subject = scheduler.make(name)
        subject.on(Event.START, start)
        if Event.VERIFY_END in subject.events:
            timed(name, (partial(subject.on, Event.VERIFY_END, view) for view in steps))
        if subject.wants_draft_routes:  # once for every drafted token
            drafts = [replace(view, draft_routes=view.routes) for view in steps]
            timed(f"{name} draft", (partial(subject.on, Event.DRAFT_TOKEN, view) for view in drafts))


if __name__ == "__main__":
    main()

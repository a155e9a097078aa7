"""Measure the policy's time per step: `python -m bench.scheduler_step [--layers 48] [--experts 128]`.

The demand is random and drifts from step to step, with top-8 routing of 9 tokens, 17 % of the experts
resident and guessed costs. The program prints µs over the steps (the quietest tenth, the median and the 90th
percentile) of

- everything that Python does from the end of a verification to the next draft, without what a session and the
  mechanism add: the whole step, and its parts. Every fourth step learns what things cost, and looks for
  layers to make whole. In a run of steps of 25 ms, every other step looks at residency for the governor;
- every scheduler's whole `on("verify_end")`.

`--cold` puts other data into the caches before every step, as after a verification.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter_ns
from types import SimpleNamespace

import numpy as np

from spac import scheduler
from spac.costs import Costs
from spac.costs.estimator import CostEstimator
from spac.engine.session_events import Events
from spac.governor import RooflineGovernor
from spac.scheduler import Event, Layer, View
from spac.scheduler.driver import Driver

SHARE, N_TOKEN, N_USED = 0.17, 9, 8
EXPERT_BYTES = 2_650_000
WARM_UP = 80  # steps: at first every step is learned from
OTHER_BYTES = 48 << 20  # bytes that fill the caches before a cold step
LAYER_COST = np.dtype(
    [("host_ns", "i8"), ("wait_ns", "i8"), ("host_activations", "i4"), ("host_distinct", "i4"),
     ("device_activations", "i4"), ("device_distinct", "i4"), ("loaded_distinct", "i4")]
)  # fmt: skip


@dataclass(frozen=True)
class Known:
    """Costs that stay the same."""

    costs: Costs


def views(n_layer: int, n_expert: int, n_step: int) -> Iterator[View]:
    """Yield a scheduler's view of each of `n_step` steps. Residents are drawn anew in each."""
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


class Experts:
    """The mechanism as the policy sees it, at the step `now`."""

    def __init__(self, start: View) -> None:
        self.layers, self.pool_slots, self.now = start.layers, start.pool_slots.tolist(), start

    def residency(self) -> np.ndarray:
        return self.now.slot_of.copy()

    def routes(self) -> np.ndarray:
        return self.now.routes

    def submit(self, priority: np.ndarray, threshold: np.ndarray) -> None: ...


def session_step(view: View, rng: np.random.Generator) -> SimpleNamespace:
    """Return what a session reports of a step of 25 ms."""
    resident, used = view.slot_of >= 0, view.demand > 0
    work = np.zeros(view.n_layer, LAYER_COST)
    for side, mine in (("host", ~resident), ("device", resident)):
        work[f"{side}_activations"] = (view.demand * mine).sum(1)
        work[f"{side}_distinct"] = (used & mine).sum(1)
    work["host_ns"] = work["host_distinct"] * 5e3 * rng.lognormal(0, 0.1, view.n_layer)
    work["wait_ns"] = 1e5 * rng.lognormal(0, 0.1, view.n_layer)
    return SimpleNamespace(
        demand=view.demand, layer_costs=work, n_drafted=view.n_drafted, n_verified=view.n_verified,
        n_accepted=view.n_accepted, draft_ns=5_000_000, verify_ns=20_000_000, sample_ns=200_000,
        upload_bytes=3 * EXPERT_BYTES, upload_ns=700_000,
    )  # fmt: skip


class Policy:
    """The work between a verification and the next draft: the default scheduler and governor."""

    def __init__(self, start: View, name: str = "logistic") -> None:
        self.experts = Experts(start)
        self._estimator = CostEstimator(Costs.guessed(start.layers), start.layers)
        self.driver = Driver(scheduler.make(name), self.experts, self._estimator)
        self.driver.start()
        self._events = Events(self.driver)
        self._governor = RooflineGovernor(
            N_TOKEN - 1,
            draft_time=self._estimator.draft_time,
            resident=lambda: self.experts.residency() >= 0,
        )
        self._governor.choose(N_TOKEN)

    def step(self, step: SimpleNamespace) -> Iterator[str]:
        """Run the parts one by one, and yield each part's name when it is done."""
        events, governor, driver = self._events, self._governor, self.driver
        events.prediction_stats.observe(
            step.demand, step.n_verified, driver.plan, driver.exists, driver.scheduler
        )
        yield "prediction_stats"
        counts = {name: getattr(step, name) for name in ("n_drafted", "n_verified", "n_accepted")}
        driver.raised(Event.VERIFY_END, step.demand, **counts)
        yield "scheduler"
        self._estimator.observe_step(step, step.n_drafted)
        yield "costs"
        misses, miss_s = -1, 0.0
        if governor.wants_experts:
            work = step.layer_costs
            misses, miss_s = int(work["host_distinct"].sum()), float(work["host_ns"].sum()) * 1e-9
            governor.demand(step.demand, step.n_verified)
        governor.observe(step.n_drafted, step.n_accepted, step.draft_ns * 1e-9, 0.025, misses, miss_s)
        yield "governor"
        governor.choose(N_TOKEN - 1)
        yield "draft length"


def time_policy(start: View, steps: list[View], cold: bool) -> None:
    policy, rng, others = Policy(start), np.random.default_rng(1), np.zeros(OTHER_BYTES // 8)
    times = defaultdict[str, list[float]](list)
    for view in [*steps[:WARM_UP], *steps]:
        step = session_step(view, rng)
        policy.experts.now = view
        if cold:
            others += 1
        begun = last = perf_counter_ns()
        for part in policy.step(step):
            now = perf_counter_ns()
            times[part].append((now - last) / 1000)
            last = now
        times["all of it"].append((last - begun) / 1000)
    for name, values in times.items():
        show(name, values[WARM_UP:])
    every = np.array(times["all of it"][WARM_UP:])
    every = every[: len(every) // 16 * 16].reshape(-1, 16)
    print(f"a step, in the mean of 16 in a row, each at its quietest tenth: "
          f"{np.percentile(every, 10, axis=0).mean():.0f} µs")  # fmt: skip


def show(name: str, times: list[float]) -> None:
    least, median, most = np.percentile(times, [10, 50, 90])
    print(f"{name:14} 10 % {least:7.0f} µs   median {median:7.0f} µs   90 % {most:7.0f} µs")


def timed(name: str, calls: Iterable[Callable[[], object]]) -> None:
    times = []
    for call in calls:
        start = perf_counter_ns()
        call()
        times.append((perf_counter_ns() - start) / 1000)
    show(name, times)


def time_schedulers(start: View, steps: list[View]) -> None:
    for name in scheduler.names():
        subject = scheduler.make(name)
        subject.on(Event.START, start)
        if Event.VERIFY_END in subject.events:
            timed(name, (partial(subject.on, Event.VERIFY_END, view) for view in steps))
        if subject.wants_draft_routes:  # one call for every drafted token
            drafts = [replace(view, draft_routes=view.routes) for view in steps]
            timed(f"{name} draft", (partial(subject.on, Event.DRAFT_TOKEN, view) for view in drafts))


def main() -> None:
    parser = argparse.ArgumentParser(description="Times what the policy does between two steps.")
    parser.add_argument("--layers", type=int, default=48)
    parser.add_argument("--experts", type=int, default=128)
    parser.add_argument("--steps", type=int, default=320)
    parser.add_argument("--cold", action="store_true", help="with other data in the caches before every step")
    given = parser.parse_args()
    start, *steps = views(given.layers, given.experts, given.steps)
    print(f"{given.layers} layers of {given.experts} experts, {given.steps} steps")
    time_policy(start, steps, given.cold)
    print()
    time_schedulers(start, steps)


if __name__ == "__main__":
    main()

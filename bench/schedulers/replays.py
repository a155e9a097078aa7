"""Replay schedulers over demand, beside the bound, and predict their steps' times by a model of a machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from bench.schedulers.belady import Bound, belady
from bench.schedulers.machine import MACHINES, Known, Model
from bench.schedulers.simulation import Simulation
from spac import _core, scheduler
from spac.config import Slots
from spac.costs import Costs
from spac.replay import Demand, replay

PRINTED = "moe-spac:paper"
"""MoE-SpAc as its paper prints it."""
RIVALS = ("profiled", "mixtral-offloading", "moe-infinity", "adapmoe", "fate", "hybrimoe")
"""The systems that the papers compare themselves with, as values of --scheduler."""


def pool_slots_of(demand: Demand, slots: str) -> list[int]:
    """Return the slots of every pool, for a number or a share of all experts as users write it."""
    shapes = [(layer.n_expert, layer.pool) for layer in demand.layers]
    n_slots = Slots.parse(slots).of(sum(n for n, _ in shapes))
    return list(_core.share_out(n_slots, shapes, 1 + max(pool for _, pool in shapes)))


def bound_of(demand: Demand, pool_slots: Sequence[int]) -> Bound:
    """Return what an optimal choice with loads on demand would hit."""
    return belady(demand.counts, [layer.pool for layer in demand.layers], pool_slots)


@dataclass(frozen=True)
class Figures:
    """The figures of one scheduler on one trace, at one number of slots, window and link."""

    distinct: float
    """The hit rate of distinct experts."""
    activations: float | None
    """The hit rate of activations; None where only distinct experts were counted."""
    of_bound: float
    """`distinct` as a share of Belady's."""
    copies: float
    """Experts copied per token."""
    step_ms: float | None = None
    """The predicted time of a step in milliseconds; None without a machine."""
    fit: float | None = None
    """The experts that the machine's link carries in that time; None without a machine."""


def between(demand: Demand) -> Known:
    """Return the costs of a link that copies between the steps, where a copy costs the CPU nothing.

    The hand-off costs nothing too, so that no layer is made whole: that spares time, and costs hits.
    """
    guessed = Costs.guessed(demand.layers)
    experts = tuple(replace(each, upload_s=0.0) for each in guessed.experts)
    return Known(replace(guessed, experts=experts, hand_off_s=0.0))


def replayed(name: str, demand: Demand, slots: str, best: float, copies: float | None) -> Figures:
    """Return the figures of a replay.

    best: Belady's hit rate. copies: the most experts copied per token; None for no limit.
    """
    n_token = int((demand.accepted + 1).sum())
    most = None if copies is None else max(1, round(copies * n_token / len(demand.counts)))
    pool_slots = pool_slots_of(demand, slots)
    costs = between(demand)
    found = replay(scheduler.make(name), demand, pool_slots, max_uploads=most, costs=costs)
    return Figures(
        found.hit_rate_distinct, found.hit_rate, found.hit_rate_distinct / best, found.uploads / n_token
    )


def predicted(name: str, demand: Demand, slots: str, best: float, machine: str, model: Model) -> Figures:
    """Return the figures of a run on a modelled machine, whose link copies all the time."""
    n_slots = sum(pool_slots_of(demand, slots))
    spent = Simulation(MACHINES[machine], model, demand, n_slots).run(scheduler.make(name), 0)
    step_s = spent.seconds / spent.steps
    return Figures(
        spent.hit_rate, None, spent.hit_rate / best, spent.uploads / spent.tokens, step_s * 1e3,
        step_s * MACHINES[machine].link_busy / model.expert_bytes,
    )  # fmt: skip

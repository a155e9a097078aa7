"""The scheduler MoE-SpAc. Demand seen by speculation drives utility, threshold, prefetch and eviction.

After each verification, Algorithm 1 moves the utility of every expert (`utility`). The workload balancer
chooses every layer's threshold τ (`balancer`). One plan has both: an expert is wanted where s >= τ, uploads
go from level K down to τ, and victims are the lowest levels. The mechanism does the loading and evicting,
freezes experts in use, and follows the layers' cyclic order (csrc/backend/experts/reconciler.h,
csrc/core/slot_table.h). The plan is there before the draft begins, so uploads run while the next tokens are
drafted. Prefill is not demand and moves no utility.

Each row of Table 4 is one option: w/o SpecUE `speculative=off`; w/o AdaBC `adapt=off`; w/o HetWB
`balance=off`; w/o SG-Prefetcher `prefetch=off`; w/o SG-Evictor `evict=off`; w/o SD is the engine's
`--draft-length 0`. The preset `moe-spac:paper` is the printed system without what was added here, and with
score 0 after use (Appendix D): docs/internals/papers.md lists the additions.

The engine measures the balancer's unit times (`spac.costs`). The scheduler reads them anew every few steps.

Priorities are s · 2^20 plus an order within the level. So they are utility levels where levels differ, and a
total order where they are equal. The paper's levels are first in, first out. Here the order is learned: it is
the probability that the next step uses an expert, with a margin for residents (`logistic`). By the same
probabilities, layers are made whole where that spares more than their slots would bring elsewhere
(`whole_layers`). Whole layers stand above level K. Levels and balancer share the slots that are left.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from spac.costs import ExpertCosts
from spac.machine.arrays import BoolArray, Float64Array, Int32Array
from spac.papers.balancer import Averages, Levels, LevelSlots, Pools, Times, as_printed, best_first, solve
from spac.papers.utility import WHOLE_STEP, UtilityEstimator
from spac.scheduler.base import UNIT, Event, Plan, Scheduler, StateArrays, View
from spac.scheduler.fixed import StaticScheduler
from spac.scheduler.logistic import LogisticScheduler
from spac.scheduler.options import Options
from spac.scheduler.whole_layers import COSTS_EVERY, WholeLayers

_THRESHOLD = 2  # τ without the balancer
_DECAY = 0.3  # part of a decayed count that is left after a step of WHOLE_STEP tokens


@dataclass(frozen=True)
class MoeSpacOptions(Options):
    """The parameters of `moe-spac`, and a switch for every part that the paper's Table 4 leaves out."""

    scheduler = "moe-spac"
    presets = MappingProxyType({"paper": {"printed": True, "levels": 4}})
    """The preset is the system as printed. Rows of Table 4 are further options."""

    levels: int = 3
    """K: the highest utility."""
    forgetting: float = 0.1
    """λ: the share of the newest change in the boundary calibration."""
    printed: bool = False
    """True: the system as printed, without what was added; docs/internals/papers.md has the list."""
    learned: bool = True
    """False: decayed counts give the order within a level, and no layers are made whole.

    So it is without `logistic`. The printed form and "w/o SpecUE" are so too.
    """
    speculative: bool = True
    """False: "w/o SpecUE". The utility says whether the last step used the expert, and K = 1."""
    adapt: bool = True
    """False: "w/o AdaBC". The boundaries are fixed (3 and 1 in the printed form)."""
    balance: bool = True
    """False: "w/o HetWB". τ is 2 in all layers, or K if that is lower."""
    prefetch: bool = True
    """False: "w/o SG-Prefetcher". A static set of experts is resident."""
    evict: bool = True
    """False: "w/o SG-Evictor". Experts stay until a pool is full.

    Then the least recently used expert is evicted, whatever its utility.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.levels <= 64:
            raise self.refusal("levels", "1 to 64")
        if not 0 <= self.forgetting <= 1:
            raise self.refusal("forgetting", "0 to 1")


class _Binary:
    """Keeps a utility without speculation's frequencies: 1 for an expert that the last step used, else 0."""

    def __init__(self, exists: BoolArray) -> None:
        self.utility: Int32Array = np.zeros(exists.shape, np.int32)

    def observe(self, demand: Int32Array, n_verified: int) -> Int32Array:
        """Return the utilities for the next step, int32 [L, N]."""
        self.utility = (demand > 0).astype(np.int32)
        return self.utility

    def state(self) -> StateArrays:
        """Return a copy of the utilities, by name."""
        return {"utility": self.utility.copy()}

    def restore(self, state: StateArrays) -> None:
        """Continue from the result of `state`."""
        self.utility = np.clip(state["utility"], 0, 1)


class MoeSpacScheduler(Scheduler):
    """Runs the full system by default; see `MoeSpacOptions` for its parts."""

    name = "moe-spac"
    option_type = MoeSpacOptions

    def __init__(self, **options: Any) -> None:
        """Set the options, by the names of MoeSpacOptions. Raise InputError for invalid ones."""
        self.options = given = MoeSpacOptions(**options)
        learns = given.learned and given.speculative and not given.printed
        self._learned = LogisticScheduler(whole=False) if learns else None
        self._last: Int32Array | None = None  # priorities of the plan in force
        self._last_order: Int32Array | None = None  # the order within levels by `_learned`
        self.wants_routes = learns  # type: ignore[misc]
        self.threshold: Int32Array = np.zeros(0, np.int32)
        """τ of every layer for the last plan, int32 [L]."""

    @property
    def n_level(self) -> int:
        """K: the highest utility."""
        return self.options.levels if self.options.speculative else 1

    @property
    def utility(self) -> Int32Array:
        """The utility s of every expert after the last step, int32 [L, N]."""
        return self._estimator.utility

    def on(self, event: Event, view: View) -> Plan | None:
        """Learn from the step at VERIFY_END, and return the plan for the next one."""
        if event == Event.START:
            return self._start(view)
        if view.n_verified == 0 or not self.options.prefetch:
            return None
        plan = self._next_plan(view)
        self._last = plan.priority
        return plan

    def _start(self, view: View) -> Plan | None:
        options, exists = self.options, view.exists
        self._estimator: UtilityEstimator | _Binary = (
            UtilityEstimator(exists, options) if options.speculative else _Binary(exists)
        )
        self._averages = Averages(view.n_layer, self.n_level)
        self._exists = exists
        self._times = self._unit_times(view)
        pools = np.array([layer.pool for layer in view.layers], np.int32)
        self._pools = Pools(pools, view.pool_slots)
        self._whole, self._last = WholeLayers(view), None
        self._count: Float64Array = np.zeros(exists.shape)
        self._used: Int32Array = np.full(exists.shape, -UNIT, np.int32)
        self._step = 0
        if self._learned is not None:
            # Only its priorities are needed. Without slots it computes no thresholds.
            self._learned.on(Event.START, replace(view, pool_slots=np.zeros_like(view.pool_slots)))
            self._last_order = np.zeros(exists.shape, np.int32)
        self._levels = Levels(self.utility, self.n_level)
        fixed = self.n_level if options.balance else min(_THRESHOLD, self.n_level)
        self.threshold = np.full(view.n_layer, fixed, np.int32)
        if not options.prefetch:
            return StaticScheduler().on(Event.START, view)
        return Plan.nothing(view.n_layer, view.n_expert)

    def _next_plan(self, view: View) -> Plan:
        if self._learned is not None:
            if self.options.evict and self._whole.observe(view, self._learned.probability, self._last):
                self._pools = Pools(self._pools.of_layer, self._whole.slots_left)
            if (plan := self._learned.on(Event.VERIFY_END, view)) is not None:
                self._last_order = self._within_level(plan.priority)
        utility = self._estimator.observe(view.demand, view.n_verified)
        resident = view.slot_of >= 0
        if self.options.balance:
            self.threshold = self._balanced(view, utility, resident)
        return self._plan(view, utility, resident)

    def state(self) -> StateArrays:
        """Return copies of all learned arrays."""
        learned = self._learned.state() if self._learned is not None else {}
        return {
            **{f"learned_{name}": value for name, value in learned.items()},
            **self._estimator.state(),
            **self._averages.state(),
            **self._whole.state(),
            "count": self._count.copy(),
            "used": self._used.copy(),
            "step": np.array(self._step, np.int64),
            "threshold": self.threshold.copy(),
        }

    def restore(self, state: StateArrays) -> None:
        """Continue from the result of `state`."""
        self._estimator.restore(state)
        self._averages.restore(state)
        self._whole.restore(state)
        self._pools, self._last = Pools(self._pools.of_layer, self._whole.slots_left), None
        self._levels = Levels(self.utility, self.n_level)
        self._count, self._used = np.maximum(state["count"], 0.0), state["used"].copy()
        self._step = int(state["step"])
        if self._learned is not None:
            prefix = "learned_"
            self._learned.restore(
                {name[len(prefix) :]: value for name, value in state.items() if name.startswith(prefix)}
            )
        if self.options.balance:
            self.threshold = np.clip(state["threshold"], 1, self.n_level)

    def _unit_times(self, view: View) -> Times:
        """Return the present unit times of all layers."""
        by_expert = not self.options.printed
        if view.costs is not None:
            costs = view.costs.costs
            units, draft_token_s = [costs.experts[layer.pool] for layer in view.layers], costs.draft_token_s
        else:
            units, draft_token_s = [ExpertCosts.guessed(layer.expert_bytes) for layer in view.layers], 1e-3
        return Times.of(units, draft_token_s, by_expert=by_expert)

    def _balanced(self, view: View, utility: Int32Array, resident: BoolArray) -> Int32Array:
        """Return τ for the next step, int32 [L]."""
        self._averages.observe(self._levels, view.demand)
        self._levels = Levels(utility, self.n_level)
        if view.costs is not None and view.step % COSTS_EVERY == 0:
            self._times = self._unit_times(view)
        slots = LevelSlots.of(self._levels, resident, self._pools, self._whole.whole == 0)
        pose = as_printed if self.options.printed else best_first
        return solve(pose(self._averages, slots, self._times, view.n_drafted))

    def _plan(self, view: View, utility: Int32Array, resident: BoolArray) -> Plan:
        options = self.options
        order, used = self._order(view), view.demand > 0
        if options.evict:
            priority, threshold = utility * np.int32(UNIT) + order, self.threshold * np.int32(UNIT)
        else:
            may_load = resident | (utility >= self.threshold[:, None])
            priority = np.where(may_load, 1 + self._recency(), 0).astype(np.int32)
            threshold = np.ones_like(self.threshold)
        if options.printed and options.evict:
            priority[resident & used] = 0  # Appendix D
        whole = self._whole.whole > 0
        threshold[whole] = (self.n_level + 1) * UNIT
        priority[whole[:, None] & self._exists] += (self.n_level + 1) * UNIT
        return Plan(priority, threshold)

    def _order(self, view: View) -> Int32Array:
        """Return the order of experts within a level, int32 [L, N] in 0..2^20-1; the highest comes first."""
        self._step += 1
        self._used[view.demand > 0] = self._step
        if self._last_order is not None:
            return self._last_order
        if self.options.printed:
            return np.zeros(view.demand.shape, np.int32)
        share = np.sqrt(view.demand / view.n_verified) if self.options.speculative else view.demand > 0
        kept = _DECAY ** min(1.0, view.n_verified / WHOLE_STEP)
        self._count *= kept
        self._count += (1 - kept) * share
        return (np.minimum(self._count, 1.0) * (UNIT - 1)).astype(np.int32)

    def _within_level(self, priority: Int32Array) -> Int32Array:
        """Return `priority` scaled to int32 [L, N] in 0..2^20-1; the order is kept.

        priority: of `logistic`, below (1 + margin) · 2^20.
        """
        assert self._learned is not None
        order = (priority * (1 / (1 + self._learned.margin))).astype(np.int32)
        return np.minimum(order, UNIT - 1, out=order)

    def _recency(self) -> Int32Array:
        """Return the recency of use, int32 [L, N] in 0..2^20-1; higher is more recent."""
        return np.maximum(self._used - self._step + (UNIT - 1), 0)

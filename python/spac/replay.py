"""Replay of a scheduler over recorded demand, without a model.

It counts hits and moved bytes, in milliseconds instead of minutes. The replay uses the real mechanism's
bookkeeping (`_core.SlotTable`) on an idealised clock. Every step finds the slots as the plans before it left
them, with all copies done. If the link is the limit, `max_uploads` is the number of experts that it carries
between two verifications. It carries an equal part of them while each token is drafted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from spac import _core
from spac.costs import LiveCosts
from spac.errors import InputError
from spac.machine.arrays import BoolArray, Int32Array
from spac.scheduler.base import Event, Layer, Plan, Scheduler, View
from spac.scheduler.demand import Demand as Demand
from spac.scheduler.demand import critical_only


@dataclass(frozen=True)
class Replay:
    """The result of a scheduler. "Distinct" counts an expert once per step, however many tokens want it."""

    activations: int
    activations_hit: int
    distinct: int
    distinct_hit: int
    uploads: int
    evictions: int
    resident: BoolArray  # [T, L, N] the experts that each step found resident

    @property
    def hit_rate(self) -> float:
        """The share of the activations that are hits."""
        return self.activations_hit / max(1, self.activations)

    @property
    def hit_rate_distinct(self) -> float:
        """The share of the distinct experts that are hits."""
        return self.distinct_hit / max(1, self.distinct)


class _Slots:
    """The slots of a model, which plans move."""

    def __init__(self, layers: Sequence[Layer], pool_slots: Sequence[int], n_expert: int) -> None:
        self._layers = layers
        self._table = _core.SlotTable([(x.n_expert, x.pool) for x in layers], list(pool_slots))
        self.slot_of: Int32Array = np.full((len(layers), n_expert), -1, np.int32)
        self.uploads = self.evictions = 0

    def settle(self, plan: Plan, max_uploads: int | None) -> None:
        """Copy and evict experts toward the plan, `max_uploads` copies at most; None for no limit."""
        if max_uploads == 0:
            return
        plan = plan.ranked()
        steps = self._table.toward(plan.priority, plan.threshold, 0)
        for _, load, victim in steps[:max_uploads]:
            if victim is not None:
                slot = self._table.evict(*victim)
                self._table.release(self._layers[victim[0]].pool, slot)
                self.slot_of[victim] = -1
                self.evictions += 1
            self.slot_of[load] = self._table.acquire(*load)
            self.uploads += 1


def _share(total: int | None, index: int, n: int) -> int | None:
    """Return the part of `total` that is due in the interval `index` of `n` equal ones; None for no limit."""
    return None if total is None else total * (index + 1) // n - total * index // n


def replay(
    scheduler: Scheduler,
    demand: Demand,
    slots: int | Sequence[int],
    *,
    max_uploads: int | None = None,
    costs: LiveCosts | None = None,
) -> Replay:
    """Run a scheduler over recorded demand, and return its result.

    slots: the slots of the model, divided as the mechanism does, or the slots of every pool. max_uploads: the
    most experts that can be copied between two steps. costs: the costs that the scheduler sees. A scheduler
    that follows a draft's routes gets the recorded ones, if there are any. Those of the target's routers come
    layer by layer while a token is drafted. Raise InputError for a scheduler that needs them, and they were
    not recorded.
    """
    n_expert = demand.counts.shape[2]
    shapes = [(x.n_expert, x.pool) for x in demand.layers]
    if isinstance(slots, int):
        slots = _core.share_out(slots, shapes, 1 + max(pool for _, pool in shapes))
    state = _Slots(demand.layers, slots, n_expert)
    view = View(
        demand.layers, np.array(slots, np.int32), state.slot_of, np.zeros_like(state.slot_of), costs=costs
    )  # fmt: skip
    plan = Plan.nothing(len(demand.layers), n_expert)
    drafts = _drafts(demand, scheduler)
    activations_hit = distinct_hit = 0
    found = np.zeros(demand.counts.shape, np.bool_)

    def ask(event: Event, view: View) -> None:
        """Ask the scheduler, if it wants the event, and update the plan."""
        nonlocal plan
        if event in scheduler.events:
            plan = (scheduler.on(event, view) or plan).over(plan)

    def draft(step: int) -> None:
        """Copy experts while the draft of this step is made, and ask the scheduler at each of its tokens."""
        n_drafted = int(demand.verified[step]) - 1
        if not scheduler.events & {Event.DRAFT_TOKEN, Event.DRAFT_END}:
            state.settle(plan, max_uploads)
            return
        tokens = _routes_of_step(drafts, step, scheduler)
        n_token, n_layer = max(1, n_drafted), len(demand.layers)
        for index in range(n_token):
            if Event.DRAFT_LAYER in scheduler.events and n_drafted:
                for layer in range(n_layer):
                    state.settle(plan, _share(max_uploads, index * n_layer + layer, n_token * n_layer))
                    seen = _known_layers(tokens, index, layer)
                    ask(
                        Event.DRAFT_LAYER,
                        replace(view, step=step, n_drafted=index, draft_routes=seen, layer=layer),
                    )
            else:
                state.settle(plan, _share(max_uploads, index, n_token))
            if n_drafted:
                seen = tokens[:, : index + 1]
                ask(Event.DRAFT_TOKEN, replace(view, step=step, n_drafted=index + 1, draft_routes=seen))
        at_once = None if max_uploads is None else 0  # the verification follows the last token
        state.settle(plan, at_once)
        ask(Event.DRAFT_END, replace(view, step=step, n_drafted=n_drafted, draft_routes=tokens))
        state.settle(plan, at_once)

    ask(Event.START, view)
    for step, counts in enumerate(demand.counts):
        draft(step)
        resident = found[step]
        np.greater_equal(state.slot_of, 0, out=resident)
        activations_hit += int(counts[resident].sum())
        distinct_hit += int(np.count_nonzero(counts[resident]))
        ask(Event.VERIFY_END, at_verification(view, demand, step, scheduler))
        state.settle(plan, max_uploads if step + 1 == len(demand.counts) else 0)
    return Replay(
        activations=int(demand.counts.sum()),
        activations_hit=activations_hit,
        distinct=int(np.count_nonzero(demand.counts)),
        distinct_hit=distinct_hit,
        uploads=state.uploads,
        evictions=state.evictions,
        resident=found,
    )


def at_verification(view: View, demand: Demand, step: int, scheduler: Scheduler) -> View:
    """Return `view` at the end of a recorded step, with what `scheduler` asks for."""
    verified, routes = int(demand.verified[step]), demand.routes if scheduler.wants_routes else None
    return replace(
        view, demand=demand.counts[step], step=step, n_drafted=verified - 1, n_verified=verified,
        n_accepted=int(demand.accepted[step]), text=0 if demand.texts is None else int(demand.texts[step]),
        routes=None if routes is None else np.ascontiguousarray(routes[step, :, :verified]),
    )  # fmt: skip


def _drafts(demand: Demand, scheduler: Scheduler) -> Int32Array | None:
    """Return the recorded draft routes if they are of the kind that `scheduler` follows, else None.

    Raise InputError if it needs the target's routers' choices, and these were not recorded.
    """
    of_target = demand.draft_routes is not None and demand.of_target
    if scheduler.routers == "target" and not of_target:
        raise InputError(
            f"scheduler '{scheduler.name}' needs what the target's routers choose for the draft's "
            "states, which this recording lacks: record it with --scheduler sp-moe"
        )
    return demand.draft_routes if scheduler.routers == ("target" if of_target else "draft") else None


def _routes_of_step(drafts: Int32Array | None, step: int, scheduler: Scheduler) -> Int32Array:
    """Return one step's draft routes as `scheduler` sees them, int32 [L, T, U].

    drafts: int32 [steps, L, T, U], or None, which gives no tokens. A scheduler that asks the target's routers
    sees its critical experts only.
    """
    if drafts is None:
        return np.zeros((0, 0, 0), np.int32)
    tokens = drafts[step]
    if scheduler.routers == "target":
        tokens = critical_only(tokens, scheduler.critical)
    known = np.flatnonzero((drafts[step] >= 0).any(axis=(0, 2)))
    return np.ascontiguousarray(tokens[:, : int(known[-1]) + 1 if known.size else 0], np.int32)


def _known_layers(tokens: Int32Array, index: int, layer: int) -> Int32Array:
    """Return the part of `tokens`, int32 [L, T, U], that is known once token `index` has passed a layer."""
    known: Int32Array = tokens[:, : index + 1].copy()
    if index < tokens.shape[1]:
        known[layer + 1 :, index] = -1
    return known

"""Replay of a scheduler over recorded demand, without a model.

It counts hits and moved bytes, in milliseconds instead of minutes. The replay uses the real mechanism's
bookkeeping (`_core.SlotTable`) on an idealised clock. Every step finds the slots as the plans before it left
them, with all copies done. If the link is the limit, `max_uploads` is the number of experts that it carries
between two verifications. It carries an equal part of them while each token is drafted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from spac import _core
from spac.costs import LiveCosts
from spac.errors import InputError
from spac.machine.arrays import BoolArray, Int32Array
from spac.scheduler.base import Event, Layer, Plan, Scheduler, View


@dataclass(frozen=True)
class Demand:
    """The demand of a model, step by step.

    Raise InputError for arrays of inconsistent shapes.
    """

    layers: tuple[Layer, ...]
    counts: Int32Array  # [T, L, N] activations
    verified: Int32Array  # [T] tokens that the target evaluated
    accepted: Int32Array  # [T] drafted tokens that it accepted
    routes: Int32Array | None = None  # [T, L, tokens, U] experts of every token, -1 padded (View.routes)
    draft_routes: Int32Array | None = None  # the draft's predictions, in the same form (View.draft_routes)

    def __post_init__(self) -> None:
        n_step, n_layer = len(self.counts), len(self.layers)
        if self.counts.ndim != 3 or self.counts.shape[1] != n_layer:
            raise InputError(f"demand must have the shape [T, {n_layer}, N], not {list(self.counts.shape)}")
        if self.verified.shape != (n_step,) or self.accepted.shape != (n_step,):
            raise InputError(f"demand of {n_step} steps needs as many counts of verified and accepted tokens")
        for routes in (self.routes, self.draft_routes):
            if routes is not None and (routes.ndim != 4 or routes.shape[:2] != (n_step, n_layer)):
                raise InputError(
                    f"routes must have the shape [{n_step}, {n_layer}, tokens, experts of each], "
                    f"not {list(routes.shape)}"
                )

    @classmethod
    def of(cls, counts: Int32Array, n_used: int, expert_bytes: int = 1) -> Demand:
        """Return demand of equal layers that share one pool.

        The counts give the number of verified tokens, and all drafted tokens count as accepted.
        """
        _, n_layer, n_expert = counts.shape
        layers = tuple(Layer(f"layer {i}", n_expert, n_used, expert_bytes, 0) for i in range(n_layer))
        verified = (counts[:, 0].sum(axis=1) // n_used).astype(np.int32)
        return cls(layers, counts.astype(np.int32), verified, np.maximum(verified - 1, 0))

    def part(self, steps: slice) -> Demand:
        """Return the demand of some of the steps."""
        routes, draft_routes = (
            None if each is None else each[steps] for each in (self.routes, self.draft_routes)
        )
        counts, verified, accepted = self.counts[steps], self.verified[steps], self.accepted[steps]
        return Demand(self.layers, counts, verified, accepted, routes, draft_routes)

    def save(self, path: Path) -> None:
        """Write the demand to `path` as a compressed .npz."""
        fields = [(x.name, x.n_expert, x.n_used, x.expert_bytes, x.pool) for x in self.layers]
        no_routes = np.zeros((len(self.counts), len(self.layers), 0, 0))
        np.savez_compressed(
            path,
            names=np.array([x[0] for x in fields]),
            layers=np.array([x[1:] for x in fields], np.int64).reshape(-1, 4),
            counts=self.counts.astype(np.uint16),
            verified=self.verified,
            accepted=self.accepted,
            routes=(no_routes if self.routes is None else self.routes).astype(np.int16),
            draft_routes=(no_routes if self.draft_routes is None else self.draft_routes).astype(np.int16),
        )

    @classmethod
    def load(cls, path: Path) -> Demand:
        """Read the demand that `save` wrote. Raise InputError for another file."""
        try:
            with np.load(path) as file:
                layers = tuple(
                    Layer(str(name), *map(int, row))
                    for name, row in zip(file["names"], file["layers"], strict=True)
                )
                counts = file["counts"].astype(np.int32)
                routes, draft_routes = (
                    file[name].astype(np.int32) if name in file and file[name].size else None
                    for name in ("routes", "draft_routes")
                )
                return cls(layers, counts, file["verified"], file["accepted"], routes, draft_routes)
        except (OSError, KeyError, ValueError) as error:
            raise InputError(f"{path} is not a recording of demand: {error}") from None


class Recorder(Scheduler):
    """Passes all events to another scheduler, and records the demand."""

    name = "recorder"
    wants_routes = True

    def __init__(self, inner: Scheduler, *, draft_routes: bool = False) -> None:
        """Wrap `inner`. draft_routes: record the draft's routes even if `inner` does not ask for them."""
        self._inner = inner
        self.wants_draft_routes = draft_routes or inner.wants_draft_routes  # type: ignore[misc]
        self.wants_draft_states = inner.wants_draft_states  # type: ignore[misc]
        asked = {Event.START, Event.VERIFY_END} | ({Event.DRAFT_END} if self.wants_draft_routes else set())
        self.events = inner.events | asked  # type: ignore[misc]
        self._layers: tuple[Layer, ...] = ()
        self.clear()

    def clear(self) -> None:
        """Forget all recorded steps."""
        self._steps: list[tuple[Int32Array, int, int]] = []
        self._routes: list[Int32Array] = []
        self._draft_routes: list[Int32Array] = []

    def on(self, event: Event, view: View) -> Plan | None:
        """Record the event, and return the answer of the inner scheduler."""
        self._layers = view.layers
        if event == Event.DRAFT_END and view.draft_routes is not None:
            del self._draft_routes[len(self._steps) :]  # a step may have stopped before its verification
            self._draft_routes.append(view.draft_routes.copy())
        if event == Event.VERIFY_END:
            self._steps.append((view.demand.copy(), view.n_verified, view.n_accepted))
            self._routes += [view.routes.copy()] if view.routes is not None else []
        return self._inner.on(event, view) if event in self._inner.events else None

    @property
    def demand(self) -> Demand:
        """The recorded demand. Raise InputError before the first step."""
        if not self._steps:
            raise InputError("nothing has been recorded yet")
        counts, verified, accepted = zip(*self._steps, strict=True)
        routes, draft_routes = (
            _stacked(each) if len(each) == len(self._steps) else None
            for each in (self._routes, self._draft_routes)
        )
        return Demand(
            self._layers,
            np.stack(counts),
            np.array(verified, np.int32),
            np.array(accepted, np.int32),
            routes,
            draft_routes,
        )


def _stacked(routes: list[Int32Array]) -> Int32Array:
    """Return the routes of all steps, int32 [T, L, tokens, U], padded with -1 to the longest step."""
    shape = np.max([each.shape for each in routes], axis=0)
    found: Int32Array = np.full((len(routes), *shape), -1, np.int32)
    for step, each in zip(found, routes, strict=True):
        n_layer, n_token, n_used = each.shape
        step[:n_layer, :n_token, :n_used] = each
    return found


@dataclass(frozen=True)
class Replay:
    """The result of a scheduler. "Distinct" counts an expert once per step, however many tokens want it."""

    activations: int
    activations_hit: int
    distinct: int
    distinct_hit: int
    step_hit_rate: float  # mean over the steps of each step's hit rate of activations
    uploads: int
    upload_bytes: int
    evictions: int
    wasted: int  # uploads evicted (or left at the end) without a single hit
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
        self._unused: BoolArray = np.zeros(self.slot_of.shape, np.bool_)  # loaded, and not hit since then
        self.uploads = self.upload_bytes = self.evictions = self.wasted = 0

    def use(self, demand: Int32Array) -> None:
        """Mark the experts that a step uses as hit."""
        self._unused &= demand == 0

    def settle(self, plan: Plan, cursor: int, max_uploads: int | None) -> None:
        """Copy and evict experts toward the plan, `max_uploads` copies at most; None for no limit."""
        if max_uploads == 0:
            return
        steps = self._table.toward(plan.priority, plan.threshold, cursor)
        for _, load, victim in steps[:max_uploads]:
            if victim is not None:
                slot = self._table.evict(*victim)
                self._table.release(self._layers[victim[0]].pool, slot)
                self.slot_of[victim] = -1
                self.evictions += 1
                self.wasted += int(self._unused[victim])
                self._unused[victim] = False
            self.slot_of[load] = self._table.acquire(*load)
            self._unused[load] = True
            self.uploads += 1
            self.upload_bytes += self._layers[load[0]].expert_bytes

    def close(self) -> None:
        """Count the experts that are left without a hit as wasted."""
        self.wasted += int(self._unused.sum())


def _share(total: int | None, index: int, n: int) -> int | None:
    """Return the part of `total` that is due in the interval `index` of `n` equal ones; None for no limit."""
    return None if total is None else total * (index + 1) // n - total * index // n


def replay(
    scheduler: Scheduler,
    demand: Demand,
    slots: int | Sequence[int],
    *,
    max_uploads: int | None = None,
    cursor: int = 0,
    costs: LiveCosts | None = None,
) -> Replay:
    """Run a scheduler over recorded demand, and return its result.

    slots: the slots of the model, divided as the mechanism does, or the slots of every pool. max_uploads: the
    most experts that can be copied between two steps. cursor: the layer that counts as the next to run when
    copies are chosen. costs: the costs that the scheduler sees. A scheduler that follows a draft's routes
    gets the recorded ones, if there are any. Raise InputError for a scheduler that needs a draft's hidden
    states.
    """
    if scheduler.wants_draft_states:
        raise InputError(f"scheduler '{scheduler.name}' needs a draft's hidden states, and none are recorded")
    n_expert = demand.counts.shape[2]
    shapes = [(x.n_expert, x.pool) for x in demand.layers]
    if isinstance(slots, int):
        slots = _core.share_out(slots, shapes, 1 + max(pool for _, pool in shapes))
    state = _Slots(demand.layers, slots, n_expert)
    view = View(
        demand.layers, np.array(slots, np.int32), state.slot_of, np.zeros_like(state.slot_of), costs=costs
    )  # fmt: skip
    plan = Plan.nothing(len(demand.layers), n_expert)
    routes = demand.routes if scheduler.wants_routes else None
    drafts = demand.draft_routes if scheduler.wants_draft_routes else None
    activations_hit = distinct_hit = 0
    rates: list[float] = []
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
            state.settle(plan, cursor, max_uploads)
            return
        tokens = np.zeros((len(demand.layers), 0, 0), np.int32) if drafts is None else drafts[step]
        known = np.flatnonzero((tokens >= 0).any(axis=(0, 2)))
        n_known = int(known[-1]) + 1 if known.size else 0
        for index in range(max(1, n_drafted)):
            state.settle(plan, cursor, _share(max_uploads, index, max(1, n_drafted)))
            if n_drafted:
                seen = tokens[:, : min(index + 1, n_known)]
                ask(Event.DRAFT_TOKEN, replace(view, step=step, n_drafted=index + 1, draft_routes=seen))
        at_once = None if max_uploads is None else 0  # the verification follows the last token
        state.settle(plan, cursor, at_once)
        ask(Event.DRAFT_END, replace(view, step=step, n_drafted=n_drafted, draft_routes=tokens[:, :n_known]))
        state.settle(plan, cursor, at_once)

    ask(Event.START, view)
    for step, counts in enumerate(demand.counts):
        draft(step)
        resident = found[step]
        np.greater_equal(state.slot_of, 0, out=resident)
        wanted, hit = int(counts.sum()), int(counts[resident].sum())
        activations_hit += hit
        distinct_hit += int(np.count_nonzero(counts[resident]))
        rates += [hit / wanted] * (wanted > 0)
        state.use(counts)
        verified, accepted = int(demand.verified[step]), int(demand.accepted[step])
        now = replace(
            view, demand=counts, step=step, n_drafted=verified - 1, n_verified=verified, n_accepted=accepted,
            routes=None if routes is None else np.ascontiguousarray(routes[step, :, :verified]),
        )  # fmt: skip
        ask(Event.VERIFY_END, now)
        state.settle(plan, cursor, max_uploads if step + 1 == len(demand.counts) else 0)
    state.close()
    return Replay(
        activations=int(demand.counts.sum()),
        activations_hit=activations_hit,
        distinct=int(np.count_nonzero(demand.counts)),
        distinct_hit=distinct_hit,
        step_hit_rate=float(np.mean(rates)) if rates else 0.0,
        uploads=state.uploads,
        upload_bytes=state.upload_bytes,
        evictions=state.evictions,
        wasted=state.wasted,
        resident=found,
    )

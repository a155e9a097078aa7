"""Runs a scheduler: turns the session's events into views and its plans into orders for the reconciler."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from spac.costs import LiveCosts
from spac.errors import InputError
from spac.scheduler.base import BoolArray, Event, IntArray, Layer, Plan, Scheduler, View
from spac.scheduler.routers import FloatArray, Gates


class LayerInfo(Protocol):
    """A layer, as the mechanism describes it (`spac._core.LayerInfo`)."""

    @property
    def name(self) -> str: ...
    @property
    def n_expert(self) -> int: ...
    @property
    def n_used(self) -> int: ...
    @property
    def expert_bytes(self) -> int: ...
    @property
    def pool(self) -> int: ...


class Experts(Protocol):
    """What a scheduler's driver needs of the mechanism (`spac._core.Experts`)."""

    @property
    def layers(self) -> Sequence[LayerInfo]: ...
    @property
    def pool_slots(self) -> list[int]: ...
    def residency(self) -> IntArray: ...
    def routes(self) -> IntArray: ...
    def submit(self, priority: IntArray, threshold: IntArray) -> None: ...


class DraftStates(Protocol):
    """What a draft's layers compute while it drafts (`spac.engine.draft_hidden_states.DraftStates`)."""

    @property
    def gates(self) -> Gates: ...
    def drafted(self, n: int) -> FloatArray: ...
    def at_end(self, n: int) -> FloatArray: ...


class Driver:
    """One scheduler at work on one model's experts. Not thread-safe: one caller at a time."""

    def __init__(
        self,
        scheduler: Scheduler,
        experts: Experts,
        costs: LiveCosts | None = None,
        states: DraftStates | None = None,
    ) -> None:
        """experts: with their slots attached; costs: what things cost, where that is known; states: the
        draft's, for schedulers that want them."""
        self.scheduler = scheduler
        self._experts = experts
        self._layers = tuple(
            Layer(info.name, info.n_expert, info.n_used, info.expert_bytes, info.pool)
            for info in experts.layers
        )
        counts = np.array([layer.n_expert for layer in self._layers], np.int32)
        n_expert = int(counts.max(initial=0))
        self.exists: BoolArray = np.arange(n_expert)[None, :] < counts[:, None]
        """bool [L, N]: False where a layer has no such expert."""
        self._plan = Plan.nothing(len(self._layers), n_expert)
        self._pool_slots = np.array(experts.pool_slots, np.int32)
        self._costs = costs
        self._states = states
        self._no_demand = np.zeros_like(self._plan.priority)
        self._step = 0

    @property
    def plan(self) -> Plan:
        """The plan in force."""
        return self._plan

    @property
    def layers(self) -> tuple[Layer, ...]:
        return self._layers

    @property
    def step(self) -> int:
        """Steps verified so far."""
        return self._step

    def resume(self, plan: Plan) -> None:
        """Have a plan of an earlier process in force until the scheduler says otherwise."""
        self._submit(plan)

    def start(self) -> None:
        """Ask for the first plan. To be called once the slots are attached."""
        self.raised(Event.START)

    def raised(
        self,
        event: Event,
        demand: IntArray | None = None,
        *,
        n_drafted: int = 0,
        n_verified: int = 0,
        n_accepted: int = 0,
        layer: int = -1,
        draft_routes: IntArray | None = None,
    ) -> None:
        """Pass an event on; if the scheduler answers with a plan, it holds from now on."""
        if event in self.scheduler.events:
            asks = self.scheduler.wants_routes and event == Event.VERIFY_END
            view = View(
                layers=self._layers,
                pool_slots=self._pool_slots,
                slot_of=self._experts.residency(),
                demand=self._no_demand if demand is None else demand,
                step=self._step,
                n_drafted=n_drafted,
                n_verified=n_verified,
                n_accepted=n_accepted,
                layer=layer,
                costs=self._costs,
                routes=self._experts.routes() if asks else None,
                draft_routes=draft_routes if self.scheduler.wants_draft_routes else None,
                draft_states=self._draft_states(event, n_drafted),
                gates=self._states.gates if self._states is not None else None,
            )
            plan = self.scheduler.on(event, view)
            if plan is not None:
                self._submit(plan)
        if event == Event.VERIFY_END:
            self._step += 1

    def _draft_states(self, event: Event, n_drafted: int) -> FloatArray | None:
        if self._states is None or event not in (Event.DRAFT_TOKEN, Event.DRAFT_END):
            return None
        return (
            self._states.drafted(n_drafted) if event == Event.DRAFT_TOKEN else self._states.at_end(n_drafted)
        )

    def _submit(self, plan: Plan) -> None:
        if plan.priority.shape != self._plan.priority.shape:
            raise InputError(
                f"scheduler '{self.scheduler.name}' returned a plan of shape {plan.priority.shape} "
                f"for a model of shape {self._plan.priority.shape}"
            )
        self._plan = plan.over(self._plan)
        self._experts.submit(self._plan.priority, self._plan.threshold)

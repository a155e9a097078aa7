"""A driver that runs a scheduler.

It turns the session's events into views, and the scheduler's plans into orders for the reconciler.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from spac.costs import Layer as CostedLayer
from spac.costs import LiveCosts
from spac.errors import InputError
from spac.machine.arrays import BoolArray, Float32Array, Int32Array
from spac.scheduler.base import Event, Layer, Plan, Scheduler, View
from spac.scheduler.routers import Routers


class LayerInfo(CostedLayer, Protocol):
    """A layer as the mechanism describes it (`spac._core.LayerInfo`)."""

    @property
    def name(self) -> str:
        """The layer's name in the model's file."""

    @property
    def n_expert(self) -> int:
        """The number of experts."""


class Experts(Protocol):
    """The part of the mechanism that a driver uses (`spac._core.Experts`)."""

    @property
    def layers(self) -> Sequence[LayerInfo]:
        """The model's MoE layers, in the order in which they run."""

    @property
    def pool_slots(self) -> list[int]:
        """The number of slots of every pool."""

    def residency(self) -> Int32Array:
        """Return the slot of every expert, int32 [L, N]; -1 if it is not resident."""

    def routes(self) -> Int32Array:
        """Return the experts of every token of the last verification, int32 [L, T, U]."""

    def submit(self, priority: Int32Array, threshold: Int32Array) -> None:
        """Make the reconciler drive the slots toward a plan."""


class DraftStates(Protocol):
    """The values that a draft's layers compute while it drafts.

    `spac.engine.draft_hidden_states.DraftStates` is one.
    """

    @property
    def routers(self) -> Routers:
        """The target's routers."""

    def drafted(self, n: int) -> Float32Array:
        """Return the hidden states, float32 [D, T, E], after the n-th token of a draft is known."""

    def at_end(self, n: int) -> Float32Array:
        """Return the hidden states, float32 [D, T, E], after a draft of n tokens has ended."""


class Driver:
    """A driver runs one scheduler on one model's experts. It is not thread-safe: one caller at a time."""

    def __init__(
        self,
        scheduler: Scheduler,
        experts: Experts,
        costs: LiveCosts | None = None,
        states: DraftStates | None = None,
    ) -> None:
        """Make a driver.

        experts: the model's experts, with slots attached. costs: the costs, where they are known. states: the
        draft's hidden states, for schedulers that want them.
        """
        self.scheduler = scheduler
        self._experts = experts
        self._layers = tuple(
            Layer(info.name, info.n_expert, info.n_used, info.expert_bytes, info.pool)
            for info in experts.layers
        )
        counts = np.array([layer.n_expert for layer in self._layers], np.int32)
        n_expert = int(counts.max(initial=0))
        self.exists: BoolArray = np.arange(n_expert)[None, :] < counts[:, None]
        """True where a layer has such an expert, bool [L, N]."""
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
        """The model's MoE layers."""
        return self._layers

    @property
    def step(self) -> int:
        """The number of steps verified so far."""
        return self._step

    def resume(self, plan: Plan) -> None:
        """Put a plan of an earlier process in force. It holds until the scheduler returns another one."""
        self._submit(plan)

    def start(self) -> None:
        """Ask the scheduler for the first plan. Call it once the slots are attached."""
        self.raised(Event.START)

    def resized(self) -> None:
        """Tell the scheduler the number of slots, after it changed.

        The scheduler goes on with what it has learned, and with its last plan until it returns another one.
        """
        self._pool_slots = np.array(self._experts.pool_slots, np.int32)
        learned = {name: array.copy() for name, array in self.scheduler.state().items()}
        plan = self._plan
        self.start()
        if learned:
            self.scheduler.restore(learned)
        if Event.VERIFY_END in self.scheduler.events:  # Other schedulers give their whole plan at the start.
            self._submit(plan)

    def raised(
        self,
        event: Event,
        demand: Int32Array | None = None,
        *,
        n_drafted: int = 0,
        n_verified: int = 0,
        n_accepted: int = 0,
        layer: int = -1,
        draft_routes: Int32Array | None = None,
    ) -> None:
        """Pass an event to the scheduler. If the scheduler returns a plan, the plan holds from now on.

        Raise InputError if the plan's shape is not the model's.
        """
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
                routers=self._states.routers if self._states is not None else None,
            )
            plan = self.scheduler.on(event, view)
            if plan is not None:
                self._submit(plan)
        if event == Event.VERIFY_END:
            self._step += 1

    def _draft_states(self, event: Event, n_drafted: int) -> Float32Array | None:
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

"""A driver that runs a scheduler.

It turns the loop's events into views, and the scheduler's plans into orders for the reconciler.
"""

from __future__ import annotations

from dataclasses import replace
from threading import RLock
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from spac.costs import LiveCosts
from spac.errors import InputError
from spac.machine.arrays import Int32Array
from spac.scheduler.base import Event, Layer, Plan, Scheduler, View
from spac.scheduler.demand import DemandRecorder, activations_of, critical_only

if TYPE_CHECKING:
    from spac import _core

_KEPT = 31
"""Steps before the last one whose routes are kept for the layer that computes no prompt."""


class TargetRoutes(Protocol):
    """The choices of the target's routers for a draft's hidden states. See `spac.engine.target_routes`."""

    def ask(self, critical: Int32Array) -> None:
        """Ask the routers of the first layers for `critical` experts each, from the next draft on."""

    def under_way(self, token: int, chosen: Int32Array) -> Int32Array | None:
        """Return the choices, int32 [L, T, U], with those of the token that the draft computes now."""

    def drafted(self, n: int) -> Int32Array:
        """Return the choices, int32 [L, T, U], after the n-th token of a draft is known."""

    def at_end(self, n: int) -> Int32Array:
        """Return the choices, int32 [L, T, U], after a draft of n tokens has ended."""


def layers_of(experts: _core.Experts) -> tuple[Layer, ...]:
    """Return the MoE layers of a model as schedulers see them."""
    return tuple(Layer(x.name, x.n_expert, x.n_used, x.expert_bytes, x.pool) for x in experts.layers)


class Driver:
    """A driver runs one scheduler on one model's experts.

    Calls may come from several threads. One of them is served at a time.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        experts: _core.Experts,
        costs: LiveCosts | None = None,
        routes: TargetRoutes | None = None,
    ) -> None:
        """Make a driver.

        experts: the model's experts, with slots attached. costs: the costs, where they are known. routes:
        what the target's routers choose for the draft, for schedulers that want it.
        """
        self.scheduler = scheduler
        self._experts = experts
        self._layers = layers_of(experts)
        shape = (len(self._layers), max((layer.n_expert for layer in self._layers), default=0))
        self._plan, self._no_demand = Plan.nothing(*shape), np.zeros(shape, np.int32)
        self._pool_slots = np.array(experts.pool_slots, np.int32)
        self._costs = costs
        self._routes = routes
        self._lock = RLock()
        self._step = 0
        self._latest: list[Int32Array] = []  # routes of the latest steps, [L, T, U] each
        self.recorder: DemandRecorder | None = None
        """The recorder of what is predicted of each draft; None for none."""
        self._asked_more = False  # True if the target's routers are asked for more than the scheduler wants

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
        with self._lock:
            self._submit(plan)

    def record(self, recorder: DemandRecorder) -> None:
        """Show a recorder what is predicted, from the next draft on, until the attribute is set to None."""
        with self._lock:
            self.recorder = recorder
            self._ask_routers()

    def _ask_routers(self) -> None:
        """Ask the target's routers for what the scheduler and the recorder want of the next draft."""
        if self._routes is not None:
            self._asked_more = self.recorder is not None
            self._routes.ask(self.scheduler.critical if self.recorder is None else self.recorder.critical)

    def start(self) -> None:
        """Ask the scheduler for the first plan. Call it once the slots are attached."""
        self.raised(Event.START)

    def resized(self) -> None:
        """Tell the scheduler the number of slots, after it changed.

        The scheduler goes on with what it has learned, and with its last plan until it returns another one.
        """
        with self._lock:
            self._pool_slots = np.array(self._experts.pool_slots, np.int32)
            learned = {name: array.copy() for name, array in self.scheduler.state().items()}
            plan = self._plan
            self.start()
            if learned:
                self.scheduler.restore(learned)
            # Other schedulers give their whole plan at the start.
            if Event.VERIFY_END in self.scheduler.events:
                self._submit(plan)

    def raised(
        self,
        event: Event,
        demand: Int32Array | None = None,
        *,
        routes: Int32Array | None = None,
        **facts: Any,
    ) -> None:
        """Pass an event to the scheduler. If the scheduler returns a plan, the plan holds from now on.

        `routes` are those of the step that was verified, from `routes_of_step`; None means that the mechanism
        still has them. `facts` are fields of the `View`. Raise InputError if the plan's shape is not the
        model's.
        """
        with self._lock:
            scheduler = self.scheduler
            if event in scheduler.events:
                if scheduler.wants_routes and event == Event.VERIFY_END:
                    facts["routes"] = self._kept(self._experts.routes() if routes is None else routes)
                plan = scheduler.on(event, self._view(demand, costs=self._costs, **facts))
                if plan is not None:
                    self._submit(plan)
            if event in (Event.START, Event.VERIFY_END):
                self._ask_routers()
            if event == Event.VERIFY_END:
                self._step += 1

    def _view(self, demand: Int32Array | None = None, **facts: Any) -> View:
        """Return what the scheduler may use now. Without `demand`, there is none."""
        return View(
            self._layers,
            self._pool_slots,
            self._experts.residency(),
            self._no_demand if demand is None else demand,
            self._step,
            **facts,
        )

    def routes_of_step(self) -> Int32Array | None:
        """Return the routes of the last verification, int32 [L, T, U], if the scheduler wants to see them."""
        return self._experts.routes() if self.scheduler.wants_routes else None

    def drafted(
        self, event: Event, n_drafted: int, routes: Int32Array | None, step: int, text: int = 0
    ) -> None:
        """Pass an event of a draft to the scheduler, on any thread, unless its step has been verified.

        routes: `View.draft_routes`, unless a tap on the draft tells them. step: `step` at the event. Raise
        InputError if the plan's shape is not the model's.
        """
        with self._lock:
            if step != self._step:
                return
            if self._routes is not None:
                known = self._routes.drafted if event == Event.DRAFT_TOKEN else self._routes.at_end
                routes = known(n_drafted)
                if self.recorder is not None and event == Event.DRAFT_END:
                    self.recorder.drafted(routes, of_target=True)
                routes = self._wanted(routes)
            self.raised(event, n_drafted=n_drafted, text=text, draft_routes=routes)

    def layer_drafted(self, token: int, chosen: Int32Array) -> None:
        """Pass on what the target's routers choose while the draft computes a token, on any thread.

        See `TargetRoutes.under_way`.
        """
        with self._lock:
            assert self._routes is not None
            draft_routes = self._routes.under_way(token, chosen)
            layer = min(len(chosen), len(self.scheduler.critical)) - 1
            if draft_routes is not None and layer >= 0:
                n_drafted, wanted = draft_routes.shape[1] - 1, self._wanted(draft_routes)
                self.raised(Event.DRAFT_LAYER, n_drafted=n_drafted, layer=layer, draft_routes=wanted)

    def _wanted(self, routes: Int32Array) -> Int32Array:
        """Return the part of the routers' choices, int32 [L, T, U], that the scheduler asked for."""
        return critical_only(routes, self.scheduler.critical) if self._asked_more else routes

    def saw_prompt(self, text: int = 0) -> None:
        """Show the scheduler the last tokens of a prompt, in their order. Only the last plan is carried out.

        `text` is the number of the text. The mechanism has the routes. The last layer computes only a
        prompt's last token, so before that it is shown the routes of the tokens that were verified last.
        Costs are not shown, because a prompt's copies are not a step's.
        """
        with self._lock:
            self._show_prompt(text)

    def _show_prompt(self, text: int) -> None:
        routes = self._whole_routes()
        view, plan = self._view(n_verified=1, text=text), None
        for token in range(routes.shape[1]):
            chosen = np.ascontiguousarray(routes[:, token : token + 1])
            shown = chosen if self.scheduler.wants_routes else None
            view = replace(view, demand=activations_of(chosen, view.n_expert), routes=shown)
            plan = self.scheduler.on(Event.VERIFY_END, view) or plan
        if plan is not None:
            self._submit(plan)

    def _whole_routes(self) -> Int32Array:
        """Return the routes of a prompt's last tokens, int32 [L, T, U], with those of the last layer."""
        routes = self._experts.routes().copy()
        n_token, n_used = routes.shape[1:]
        latest = [step[:, -1] for step in self._latest[-n_token:] if step.shape[2] == n_used]
        for layer, token in np.argwhere((routes < 0).all(axis=2)) if latest else ():
            routes[layer, token] = latest[token % len(latest)][layer]
        return routes

    def _kept(self, routes: Int32Array) -> Int32Array:
        """Return the routes of the step that was verified, and keep those of the latest steps."""
        if self.scheduler.sees_prompts and routes.shape[1] > 0:  # experts with an adapter have none
            self._latest = [*self._latest[-_KEPT:], routes]
        return routes

    def _submit(self, plan: Plan) -> None:
        if plan.priority.shape != self._plan.priority.shape:
            raise InputError(
                f"scheduler '{self.scheduler.name}' returned a plan of shape {plan.priority.shape} "
                f"for a model of shape {self._plan.priority.shape}"
            )
        self._plan = plan.over(self._plan)
        ranked = self._plan.ranked()
        self._experts.submit(ranked.priority, ranked.threshold)

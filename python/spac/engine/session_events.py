"""The handling of a session's events in an engine: counting, scheduling and listeners."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic_ns
from typing import TYPE_CHECKING

import numpy as np

from spac.machine.arrays import Int32Array
from spac.scheduler import Event, Plan
from spac.stats.prediction import PredictionStats

if TYPE_CHECKING:
    import spac._core as _core
    from spac.scheduler.driver import Driver
    from spac.stats.timeline import Timeline

_PATIENCE_S = 10.0  # timeout for the copies that a step waits for


class Events:
    """Passes a session's events to the statistics, then to the scheduler, then to the listeners.

    It subscribes only to events that one of them uses. Other events cost nothing.
    """

    def __init__(self, driver: Driver | None, timeline: Timeline | None = None) -> None:
        self.driver = driver
        """The driver of the scheduler, or None.

        Call `subscribe` after setting another one.
        """
        self.timeline = timeline
        self.prediction_stats = PredictionStats()
        """The prediction statistics that count the steps of the current generation."""
        self.settled: _core.Experts | None = None
        """The experts whose plan is carried out before a verification begins; None for none.

        The residency then does not depend on how long copies take.
        """
        self.after_step: list[Callable[[_core.Step], None]] = []
        """The callbacks at the end of every step, after the scheduler.

        Add them before the first generation.
        """

        self._before: Plan | None = None  # the verification's first plan, if the plan changed since

    def subscribe(self, session: _core.Session) -> None:
        """Subscribe to exactly the events that are used now."""
        scheduler = self.driver.scheduler if self.driver is not None else None
        wanted = scheduler.events if scheduler is not None else frozenset()
        counts = self.driver is not None or bool(self.after_step)
        session.keep_draft_routes(scheduler is not None and scheduler.wants_draft_routes)
        session.on("draft_token", self._draft_token if Event.DRAFT_TOKEN in wanted else None)
        waits = Event.DRAFT_END in wanted or self.settled is not None
        session.on("draft_end", self._draft_end if waits else None)
        # A plan that comes during a verification makes the residency depend on timing.
        layers = Event.VERIFY_LAYER in wanted and self.settled is None
        session.on("verify_layer", self._verify_layer if layers else None)
        session.on("verify_end", self._verify_end if counts else None)

    def settle(self) -> None:
        """Wait for the copies to the slots if `settled` is set."""
        if self.settled is not None:
            self.settled.settle(_PATIENCE_S)

    def _draft_token(self, event: _core.DraftToken) -> None:
        self.settle()  # A plan that the next one interrupts leaves a residency that depends on timing.
        self._schedule(Event.DRAFT_TOKEN, n_drafted=event.index + 1, draft_routes=event.routes)

    def _draft_end(self, event: _core.DraftEnd) -> None:
        if self.driver is not None:
            self.settle()
            self._schedule(Event.DRAFT_END, n_drafted=len(event.tokens), draft_routes=event.routes)
        self.settle()

    def _verify_layer(self, event: _core.VerifyLayer) -> None:
        assert self.driver is not None
        if self._before is None:
            self._before = self.driver.plan
        demand = np.zeros_like(self.driver.plan.priority)
        demand[event.layer, : len(event.demand)] = event.demand
        self._schedule(Event.VERIFY_LAYER, demand, layer=event.layer)

    def _verify_end(self, step: _core.Step) -> None:
        driver = self.driver
        if driver is not None:
            before, self._before = self._before or driver.plan, None
            demand = step.demand  # The property makes a new view at each access.
            self.prediction_stats.observe(demand, step.n_verified, before, driver.exists, driver.scheduler)
            self._schedule(
                Event.VERIFY_END,
                demand,
                n_drafted=step.n_drafted,
                n_verified=step.n_verified,
                n_accepted=step.n_accepted,
            )
        for listener in self.after_step:
            listener(step)

    def _schedule(
        self,
        event: Event,
        demand: Int32Array | None = None,
        *,
        draft_routes: Int32Array | None = None,
        **counts: int,
    ) -> None:
        assert self.driver is not None
        start = monotonic_ns()
        self.driver.raised(event, demand, draft_routes=draft_routes, **counts)
        end = monotonic_ns()
        self.prediction_stats.scheduler_ns += end - start
        if self.timeline is not None:
            self.timeline.add("scheduler", event.value, start, end)

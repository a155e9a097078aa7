"""What happens in an engine when its session raises an event: counting, scheduling, and who else listens."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic_ns
from typing import TYPE_CHECKING

import numpy as np

from spac.scheduler import Event, Plan
from spac.stats.prediction import Insight

if TYPE_CHECKING:
    import spac._core as _core
    from spac.scheduler.base import IntArray
    from spac.scheduler.driver import Driver
    from spac.stats.timeline import Timeline


_PATIENCE_S = 10.0  # for copies that a step waits for


class Events:
    """Passes a session's events on, in this order: to the statistics, the scheduler, the listeners.

    Events that nobody wants are not asked for and cost nothing.
    """

    def __init__(self, driver: Driver | None, timeline: Timeline | None = None) -> None:
        self.driver = driver
        """Whose scheduler is asked; None: nobody's. To be followed by `subscribe` when it is another one."""
        self.timeline = timeline
        self.insight = Insight()
        """Where steps are counted; replaced for every generation."""
        self.settled: _core.Experts | None = None
        """Experts whose plan is to be carried out before a verification begins, so that what is resident does
        not depend on how long copies take."""
        self.after_step: list[Callable[[_core.Step], None]] = []
        """Called at the end of every step, after the scheduler. To be added before the first generation."""

        self._before: Plan | None = None  # the plan that the verification began with, where it changed since

    def subscribe(self, session: _core.Session) -> None:
        """Ask for the events that are wanted now, and no others."""
        scheduler = self.driver.scheduler if self.driver is not None else None
        wanted = scheduler.events if scheduler is not None else frozenset()
        counts = self.driver is not None or bool(self.after_step)
        session.keep_draft_routes(scheduler is not None and scheduler.wants_draft_routes)
        session.on("draft_token", self._draft_token if Event.DRAFT_TOKEN in wanted else None)
        waits = Event.DRAFT_END in wanted or self.settled is not None
        session.on("draft_end", self._draft_end if waits else None)
        # Plans that come while a verification runs make what is resident a matter of timing.
        layers = Event.VERIFY_LAYER in wanted and self.settled is None
        session.on("verify_layer", self._verify_layer if layers else None)
        session.on("verify_end", self._verify_end if counts else None)

    def settle(self) -> None:
        """Wait for what is on its way to the slots, where that is asked for (`settled`)."""
        if self.settled is not None:
            self.settled.settle(_PATIENCE_S)

    def _draft_token(self, event: _core.DraftToken) -> None:
        self.settle()  # a plan that the next one cuts short would leave what timing decides
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
            demand = step.demand  # a view that is made anew at every look
            self.insight.observe(demand, step.n_verified, before, driver.exists, driver.scheduler)
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
        demand: IntArray | None = None,
        *,
        draft_routes: IntArray | None = None,
        **counts: int,
    ) -> None:
        assert self.driver is not None
        start = monotonic_ns()
        self.driver.raised(event, demand, draft_routes=draft_routes, **counts)
        end = monotonic_ns()
        self.insight.scheduler_ns += end - start
        if self.timeline is not None:
            self.timeline.add("scheduler", event.value, start, end)

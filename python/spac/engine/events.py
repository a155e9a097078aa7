"""The handling of the loop's events in an engine: counting, scheduling and listeners."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic_ns
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from spac import _core
from spac.engine.workers import DraftWorker, StepWorker
from spac.machine.arrays import Int32Array
from spac.scheduler import Event
from spac.stats.scheduler_time import SchedulerTime

if TYPE_CHECKING:
    from spac.scheduler.driver import Driver
    from spac.stats.recording import Recorder

_PATIENCE_S = 10.0  # timeout for the copies that a step waits for


class _Draft(NamedTuple):
    """Holds the contents of a draft's event."""

    event: Event
    n_drafted: int
    routes: Int32Array | None
    step: int


class _Verified(NamedTuple):
    """Holds what is scheduled of a verification."""

    driver: Driver
    demand: Int32Array
    routes: Int32Array | None
    n_drafted: int
    n_verified: int
    n_accepted: int
    text: int
    time: SchedulerTime


class Events:
    """Passes the loop's events to the scheduler, then to the listeners.

    It subscribes only to events that one of them uses. Other events cost nothing. Beside the steps, the
    scheduler gets a verification on a thread of its own, while the next step computes.
    """

    def __init__(self, driver: Driver | None) -> None:
        self.driver = driver
        """The driver of the scheduler, or None.

        Call `subscribe` after setting another one.
        """
        self.recorder: Recorder | None = None
        """The recorder that gets the scheduler's spans, or None."""
        self.scheduler_time = self.new_time()
        """The scheduler's time in the current generation."""
        self.settled: _core.Experts | None = None
        """The experts whose plan is carried out before a verification begins; None for none.

        The residency then does not depend on how long copies take.
        """
        self.beside = False
        """True if a scheduler that needs only verifications works while the next step computes.

        Call `subscribe` after setting it.
        """
        self.after_step: list[Callable[[_core.Step], None]] = []
        """The callbacks at the end of every step. Without `beside`, they come after the scheduler.

        Add them before the first generation.
        """

        self.fault: BaseException | None = None
        """The exception that the scheduler or a listener raised since the last text began, or None."""
        self.n_text = 0
        """The number of texts that were begun."""
        self._worker: DraftWorker[_Draft] | None = None
        self._step_worker: StepWorker[_Verified] | None = None

    def new_time(self) -> SchedulerTime:
        """Return a new count of the scheduler's time, for `scheduler_time`."""
        return SchedulerTime(complete=self.drain, check=self.wait)

    def wait(self) -> None:
        """Wait until the scheduler has seen the last step, on any thread. Raise what it raised, once."""
        if (worker := self._step_worker) is not None:
            worker.wait()

    def drain(self) -> None:
        """Wait until the scheduler has seen the last step, on any thread."""
        if (worker := self._step_worker) is not None:
            worker.drain()

    def subscribe(self, loop: _core.ServerLoop) -> None:
        """Subscribe to exactly the events that are used now."""
        scheduler = self.driver.scheduler if self.driver is not None else None
        wanted = scheduler.events if scheduler is not None else frozenset()
        counts = self.driver is not None or bool(self.after_step)
        loop.keep_draft_routes(scheduler is not None and scheduler.routers == "draft")
        self.end()
        # With `settled`, each plan is carried out before the next event.
        if scheduler is not None and scheduler.routers == "draft" and self.settled is None:
            self._worker = DraftWorker(self._follow)
        if self.beside and self.settled is None and wanted == {Event.START, Event.VERIFY_END}:
            self._step_worker = StepWorker(self._consider)

        def on(event: str, call: Callable[..., None], *, is_used: bool) -> None:
            loop.on(event, self.noting(call) if is_used else None)

        on("draft_token", self._draft_token, is_used=Event.DRAFT_TOKEN in wanted)
        waits = Event.DRAFT_END in wanted or self.settled is not None
        on("draft_end", self._draft_end, is_used=waits)
        # A plan that comes during a verification makes the residency depend on timing.
        layers = Event.VERIFY_LAYER in wanted and self.settled is None
        on("verify_layer", self._verify_layer, is_used=layers)
        on("verify_end", self._verify_end, is_used=counts)
        sees_prompts = scheduler is not None and scheduler.sees_prompts
        on("prompt_tail", self._prompt_tail, is_used=sees_prompts)

    def noting(self, call: Callable[..., None]) -> Callable[..., None]:
        """Return the callback `call`, which notes what it raises."""

        def noting(*event: object) -> None:
            try:
                call(*event)
            except BaseException as error:
                self.fault = error
                raise

        return noting

    def end(self) -> None:
        """Follow no drafts and no steps until the next call of `subscribe`."""
        if self._worker is not None:
            self._worker.close()
        self._worker = None
        if (worker := self._step_worker) is not None:
            self._step_worker = None
            worker.drain()
            worker.close()

    def settle(self) -> None:
        """Wait for the copies to the slots if `settled` is set."""
        if self.settled is not None:
            self.settled.settle(_PATIENCE_S)

    def _prompt_tail(self) -> None:
        assert self.driver is not None
        self.wait()
        with self._timed("prompt", self.scheduler_time):
            self.driver.saw_prompt(self.n_text)
        self.settle()

    def _draft_token(self, event: _core.DraftToken) -> None:
        self.settle()  # A plan that the next one interrupts leaves a residency that depends on timing.
        self._drafted(_Draft(Event.DRAFT_TOKEN, event.index + 1, event.routes, self._step))

    def _draft_end(self, event: _core.DraftEnd) -> None:
        if self.driver is not None:
            if self.driver.recorder is not None and event.routes is not None:
                self.driver.recorder.drafted(event.routes)
            self.settle()
            self._drafted(_Draft(Event.DRAFT_END, len(event.tokens), event.routes, self._step))
        self.settle()

    @property
    def _step(self) -> int:
        return self.driver.step if self.driver is not None else 0

    def _drafted(self, draft: _Draft) -> None:
        """Ask the scheduler about a draft, on the worker's thread if there is one."""
        if self._worker is not None:
            self._worker.show(draft)
        else:
            with self._timed(draft.event.value, self.scheduler_time):
                self._ask_about(draft)

    def _follow(self, draft: _Draft) -> None:
        start = monotonic_ns()
        self._ask_about(draft)
        if (recorder := self.recorder) is not None:
            recorder.add("draft worker", draft.event.value, start, monotonic_ns())

    def _ask_about(self, draft: _Draft) -> None:
        assert self.driver is not None
        self.driver.drafted(draft.event, draft.n_drafted, draft.routes, draft.step, self.n_text)

    def _verify_layer(self, event: _core.VerifyLayer) -> None:
        assert self.driver is not None
        demand = np.zeros_like(self.driver.plan.priority, np.int32)
        demand[event.layer, : len(event.demand)] = event.demand
        with self._timed(Event.VERIFY_LAYER.value, self.scheduler_time):
            self.driver.raised(Event.VERIFY_LAYER, demand, layer=event.layer, text=self.n_text)

    def _verify_end(self, step: _core.Step) -> None:
        driver = self.driver
        if driver is not None:
            if self._worker is not None:
                self._worker.drop()
            demand = step.demand  # The property makes a new view of the loop's one buffer at each access.
            counts = step.n_drafted, step.n_verified, step.n_accepted
            about = self.n_text, self.scheduler_time
            if (worker := self._step_worker) is not None:
                routes = driver.routes_of_step()
                worker.show(_Verified(driver, demand.copy(), routes, *counts, *about))
            else:
                self._consider(_Verified(driver, demand, None, *counts, *about))
        for listener in self.after_step:
            listener(step)

    def _consider(self, step: _Verified) -> None:
        """Show a verification to the scheduler, unless another one has taken its place."""
        driver = step.driver
        if driver is not self.driver:
            return
        with self._timed(Event.VERIFY_END.value, step.time):
            driver.raised(
                Event.VERIFY_END, step.demand, n_drafted=step.n_drafted, n_verified=step.n_verified,
                n_accepted=step.n_accepted, text=step.text, routes=step.routes,
            )  # fmt: skip

    @contextmanager
    def _timed(self, what: str, time: SchedulerTime) -> Iterator[None]:
        """Count the scheduler's time, and record it under the name `what`."""
        start = monotonic_ns()
        yield
        end = monotonic_ns()
        time.ns += end - start
        if (recorder := self.recorder) is not None:
            recorder.add("scheduler", what, start, end)

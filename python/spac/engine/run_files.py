"""The files of an engine: the warm state, which it reads and writes, and the timeline, which it writes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spac import env
from spac.engine.warm_state import WarmState, facts_of, kept_path, misfit, prepare, trim
from spac.errors import InputError
from spac.machine.files import check_outputs
from spac.scheduler import Event, SchedulerChoice
from spac.stats.timeline import Timeline

if TYPE_CHECKING:
    import spac._core as _core
    from spac.config import EngineConfig
    from spac.scheduler.driver import Driver

_COLD = "starts cold, and replaces it at the end"


class RunFiles:
    """The files of one engine, which are checked before any model is loaded."""

    def __init__(self, config: EngineConfig) -> None:
        """Check the files and read the warm state, or raise InputError if a file cannot be used."""
        self._target = Path(config.target)
        self._state_path = config.state_file
        # An object's name does not tell which class it is of, so only schedulers by name are kept.
        by_name = isinstance(config.scheduler, SchedulerChoice)
        self._keeps = by_name and config.keeps_state and env.STATE.get() != "off"
        self._device = ""
        self._timeline_path = Path(config.timeline) if config.timeline else None
        check_outputs({"--state": self._state_path, "--timeline": self._timeline_path})
        self._state = WarmState.load(self._state_path) if self._state_path is not None else None
        self.timeline: Timeline | None = None
        """The timeline while it records; None before and after."""

    def begin(
        self, driver: Driver | None, options: Mapping[str, Any], trace: _core.Trace, device: str
    ) -> list[str]:
        """Restore the warm state, start the timeline, and return notes for the user.

        `options` are the scheduler's options, `device` is a text that identifies the device.
        """
        self._device = device
        if self._timeline_path is not None:
            self.timeline = Timeline(self._timeline_path, trace)
        if self._keeps and driver is not None:
            return self._begin_kept(driver, dict(options))
        if self._state_path is None:
            return []
        if driver is None:
            return [f"state {self._state_path}: not used, for there are no slots"]
        fault = self._resume(driver, dict(options))
        return [f"state {self._state_path}: {fault}"] if fault else []

    def _begin_kept(self, driver: Driver, options: dict[str, Any]) -> list[str]:
        """Restore the state that the cache folder keeps, and return a note if there is a fault."""
        try:
            path = kept_path(self._target, self._device, driver.scheduler.name, options)
            prepare(path)
        except InputError as error:
            self._keeps = False
            return [f"what the scheduler learns is not kept for the next run: {error}"]
        try:
            self._state = WarmState.load(path)
            fault = self._resume(driver, options)
        except InputError:
            fault = f"a damaged file; {_COLD}"
        return [f"state {path}: {fault}"] if fault else []

    def _resume(self, driver: Driver, options: dict[str, Any]) -> str:
        """Restore the state if there is one, and return what of it cannot be used and why, else ""."""
        state, scheduler = self._state, driver.scheduler
        if state is None:
            return ""
        self._state = None
        if fault := self._misfit(state, driver, options):
            return f"{fault}; {_COLD}"
        if state.learned:
            scheduler.restore(scheduler.for_new_text(state.learned))
        if Event.VERIFY_END in scheduler.events:  # Other schedulers give their whole plan at the start.
            driver.resume(state.plan)
        return ""

    def _misfit(self, state: WarmState, driver: Driver, options: dict[str, Any]) -> str:
        """Return why a state does not fit, else ""."""
        scheduler = driver.scheduler
        if different := state.differences(facts_of(self._target, driver.layers)):
            return f"of another model, for {' and '.join(different)} differ{'s' * (len(different) == 1)}"
        if state.scheduler != scheduler.name:
            return f"of scheduler '{state.scheduler}', this is '{scheduler.name}'"
        if state.options != options:
            return f"of scheduler '{scheduler.name}' with {_named(state.options)}, not {_named(options)}"
        if fault := misfit(state.learned, scheduler.state()):
            return f"not one that scheduler '{scheduler.name}' can go on from: {fault}"
        if state.plan.priority.shape != driver.plan.priority.shape:
            return "a plan of another shape"
        return ""

    def end(self, driver: Driver | None, options: Mapping[str, Any], about: dict[str, Any]) -> list[str]:
        """Write the timeline and the warm state, once, and return notes for the user.

        `about` goes into the timeline. Raise InputError if a file cannot be written. Call this before the
        model is freed.
        """
        timeline, path = self.timeline, self._state_path
        self.timeline = self._state_path = None
        notes = []
        if timeline is not None:
            timeline.write(about)
            if timeline.dropped:
                notes.append(
                    f"timeline {timeline.path}: full, the last {timeline.dropped} entries are missing in it"
                )
        if driver is not None and driver.step > 0:
            if path is not None:
                self._state_of(driver, options).save(path)
            elif self._keeps:
                notes += self._keep(self._state_of(driver, options))
        self._keeps = False
        return notes

    def _state_of(self, driver: Driver, options: Mapping[str, Any]) -> WarmState:
        facts, scheduler = facts_of(self._target, driver.layers), driver.scheduler
        learned, plan = scheduler.state(), driver.plan
        return WarmState(facts, scheduler.name, dict(options), learned, plan)

    def _keep(self, state: WarmState) -> list[str]:
        """Write the state into the cache folder, and return a note if that fails."""
        try:
            path = kept_path(self._target, self._device, state.scheduler, state.options)
            state.save(path)
            trim(path.parent)
        except (InputError, OSError) as error:
            return [f"what the scheduler learned is not kept for the next run: {error}"]
        return []


def _named(options: Mapping[str, Any]) -> str:
    return ",".join(f"{key}={value}" for key, value in options.items()) or "its default options"

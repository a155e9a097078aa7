"""The warm state of an engine's scheduler, which is read and written."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from spac import env
from spac.costs import store
from spac.costs.store import fingerprint
from spac.errors import InputError
from spac.machine.files import check_outputs
from spac.scheduler import Event, SchedulerChoice
from spac.scheduler.base import Layer, Plan, StateArrays

if TYPE_CHECKING:
    from spac.config import EngineConfig
    from spac.scheduler.driver import Driver

_LEARNED = "scheduler."  # the prefix of the arrays' names
_COLD = "starts cold, and replaces it at the end"

Facts = dict[str, Any]


def facts_of(target: Path, layers: Sequence[Layer]) -> Facts:
    """Return the facts that identify a target, whatever its file is called.

    The first part of a split file stands for the whole file. Raise InputError if it cannot be read.
    """
    return {
        "layers": len(layers),
        "experts": [layer.n_expert for layer in layers],
        "expert_bytes": [layer.expert_bytes for layer in layers],
        "file": fingerprint(target),
    }


_FACTS = {
    "layers": "the number of MoE layers",
    "experts": "the number of experts",
    "expert_bytes": "the experts' sizes or types",
    "file": "the file's size or content",
}


def key_of(target: Path, device: str, scheduler: str, options: Mapping[str, Any], n_layer: int) -> store.Key:
    """Return the store's key for a target, a device and a scheduler, on any processor and with any build.

    `n_layer` is the number of layers that are split: those that draft for a target are not always loaded.
    Raise InputError if the target cannot be read.
    """
    more = json.dumps([scheduler, options, n_layer], sort_keys=True)
    return store.Key.of("state", device=device, target=target, timed=False, more=more)


@dataclass(frozen=True)
class WarmState:
    """The state of one engine at its end: the scheduler's learned arrays and its last plan.

    The store keeps states for each target, device and scheduler. A `--state` file has the same format.
    """

    facts: Facts
    scheduler: str
    options: dict[str, Any]
    """The scheduler's options that differ from its defaults."""
    learned: StateArrays
    """The arrays that `Scheduler.state` returns."""
    plan: Plan
    """The plan that was in force."""

    def differences(self, facts: Facts) -> list[str]:
        """Return the names of the facts that differ from `facts`, in words; empty if the state fits."""
        return [text for name, text in _FACTS.items() if self.facts.get(name) != facts[name]]

    @property
    def content(self) -> tuple[dict[str, Any], dict[str, np.ndarray[Any, Any]]]:
        """The value and the arrays of the state's entry."""
        arrays = {_LEARNED + name: array for name, array in self.learned.items()}
        arrays |= {"priority": self.plan.priority, "threshold": self.plan.threshold}
        return {"scheduler": self.scheduler, "options": self.options, "target": self.facts}, arrays

    def save(self, path: Path) -> None:
        """Write a file, or raise InputError and leave the file unchanged."""
        store.write(path, *self.content)

    @classmethod
    def load(cls, path: Path) -> WarmState | None:
        """Return the state in a file, or None if the file does not exist or is empty.

        Raise InputError if the file is not a state, is damaged, or has another version of the format.
        """
        try:
            entry = store.read(path, "a saved state")
            return cls.of(entry) if entry is not None else None
        except InputError as error:
            raise InputError(f"{error}: name another --state file") from None
        except ValueError:
            raise InputError(f"{path}: not a saved state: name another --state file") from None

    @classmethod
    def of(cls, entry: store.Entry) -> WarmState:
        """Return the state in an entry, or raise ValueError if there is none."""
        arrays, value = dict(entry.arrays), entry.value
        try:
            plan = Plan(arrays.pop("priority"), arrays.pop("threshold"))
            learned = {
                name.removeprefix(_LEARNED): array
                for name, array in arrays.items()
                if name.startswith(_LEARNED)
            }
            facts, scheduler, options = dict(value["target"]), str(value["scheduler"]), dict(value["options"])
        except (InputError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(str(error)) from None
        return cls(facts, scheduler, options, learned, plan)


def misfit(learned: StateArrays, fresh: Mapping[str, np.ndarray[Any, Any]]) -> str:
    """Return why a scheduler that starts with `fresh` cannot continue from `learned`; "" if it can."""
    if learned.keys() != fresh.keys():
        return f"it holds {', '.join(sorted(learned)) or 'nothing'}, expected {', '.join(sorted(fresh))}"
    for name, array in fresh.items():
        found = learned[name]
        if found.shape != array.shape or found.dtype != array.dtype:
            return f"{name} is {found.dtype}{list(found.shape)}, expected {array.dtype}{list(array.shape)}"
        if found.dtype.kind == "f" and not np.isfinite(found).all():
            return f"{name} has values that are no numbers"
    return ""


class RunFiles:
    """The file of an engine's warm state, which is checked before any model is loaded."""

    def __init__(self, config: EngineConfig) -> None:
        """Check the files and read the warm state, or raise InputError if a file cannot be used."""
        self._target = Path(config.target)
        self._state_path = config.state_file
        # An object's name does not tell which class it is of, so only schedulers by name are kept.
        by_name = isinstance(config.scheduler, SchedulerChoice)
        self._keeps = by_name and config.keeps_state and env.STATE.get() != "off"
        self._device = ""
        check_outputs({"--state": self._state_path})
        self._state = WarmState.load(self._state_path) if self._state_path is not None else None

    def begin(self, driver: Driver | None, options: Mapping[str, Any], device: str) -> list[str]:
        """Restore the warm state, and return notes for the user.

        `options` are the scheduler's options, `device` is a text that identifies the device.
        """
        self._device = device
        if self._keeps and driver is not None:
            return self._begin_kept(driver, dict(options))
        if self._state_path is None:
            return []
        if driver is None:
            return [f"state {self._state_path}: not used, for there are no slots"]
        fault = self._resume(driver, dict(options))
        return [f"state {self._state_path}: {fault}"] if fault else []

    def _begin_kept(self, driver: Driver, options: dict[str, Any]) -> list[str]:
        """Restore the state that the store keeps, and return notes about faults."""
        notes = list[str]()
        try:
            key = key_of(self._target, self._device, driver.scheduler.name, options, len(driver.layers))
            store.check()
        except InputError as error:
            self._keeps = False
            return [f"what the scheduler learns is not kept for the next run: {error}"]
        fault = ""
        if (entry := store.get(key, notes)) is not None:
            try:
                self._state = WarmState.of(entry)
                fault = self._resume(driver, options)
            except ValueError:
                fault = f"a damaged state; {_COLD}"
        return [*notes, *([f"state {key.path}: {fault}"] if fault else [])]

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

    def end(self, driver: Driver | None, options: Mapping[str, Any]) -> list[str]:
        """Write the warm state, once, and return notes for the user.

        Raise InputError if the file cannot be written. Call this before the model is freed.
        """
        path, self._state_path = self._state_path, None
        notes: list[str] = []
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
        """Put the state into the store, and return a note if that fails."""
        try:
            n_layer = int(state.facts["layers"])
            key = key_of(self._target, self._device, state.scheduler, state.options, n_layer)
            store.put(key, *state.content)
        except (InputError, OSError) as error:
            return [f"what the scheduler learned is not kept for the next run: {error}"]
        return []


def _named(options: Mapping[str, Any]) -> str:
    return ",".join(f"{key}={value}" for key, value in options.items()) or "its default options"

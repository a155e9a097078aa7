"""The warm state of an engine's scheduler, which is read and written."""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from spac import env
from spac.costs.cache import fingerprint, make_folder
from spac.errors import InputError
from spac.machine.files import (
    check_outputs,
    check_unpacked,
    check_writable,
    read_plain,
    unreadable,
    write_atomically,
)
from spac.scheduler import Event, SchedulerChoice
from spac.scheduler.base import Layer, Plan, StateArrays

if TYPE_CHECKING:
    from spac.config import EngineConfig
    from spac.scheduler.driver import Driver

FORMAT = 1
MOST_BYTES = 512 << 20
"""The most bytes of kept states. A model of 48 layers of 128 experts has 13 MB with `logistic`."""
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


def kept_path(target: Path, device: str, scheduler: str, options: Mapping[str, Any]) -> Path:
    """Return the cache folder's file for a target, a device and a scheduler. It may not exist.

    Raise InputError if the target cannot be read.
    """
    key = json.dumps([fingerprint(target), device, scheduler, options], sort_keys=True)
    return env.cache_folder() / "states" / f"{hashlib.sha256(key.encode()).hexdigest()[:24]}.npz"


def prepare(path: Path) -> None:
    """Make the folder of a kept state, or raise InputError if the state could not be written there."""
    make_folder(path.parent)
    check_writable(path.with_suffix(f".{os.getpid()}"))


def trim(folder: Path, most_bytes: int = MOST_BYTES) -> None:
    """Delete the oldest files of a folder until the others have `most_bytes` at most.

    Another process may do the same at the same time. Files that cannot be deleted stay.
    """
    found = []
    for path in folder.iterdir():
        with suppress(OSError):
            found.append((path.stat().st_mtime_ns, path.stat().st_size, path))
    total = 0
    for _, n_bytes, path in sorted(found, reverse=True):
        total += n_bytes
        if total > most_bytes:
            with suppress(OSError):
                path.unlink()


@dataclass(frozen=True)
class WarmState:
    """The state of one engine at its end: the scheduler's learned arrays and its last plan.

    Its file is a `.npz` archive of numpy arrays without pickled objects, written whole or not at all. Its
    entry `about` is JSON, with the version of the format. The cache folder keeps states for each target,
    device and scheduler. The oldest go when they take too much.
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

    def save(self, path: Path) -> None:
        """Write the file, or raise InputError and leave the file unchanged."""
        about = {
            "spac_state": FORMAT,
            "scheduler": self.scheduler,
            "options": self.options,
            "target": self.facts,
        }
        arrays = {_LEARNED + name: array for name, array in self.learned.items()}
        data = io.BytesIO()
        np.savez(  # Compressing would take seconds where tables are large.
            data,
            allow_pickle=False,
            about=np.array(json.dumps(about)),
            priority=self.plan.priority,
            threshold=self.plan.threshold,
            **arrays,
        )
        write_atomically(path, data.getvalue())

    @classmethod
    def load(cls, path: Path) -> WarmState | None:
        """Return the state in a file, or None if the file does not exist or is empty.

        Raise InputError if the file is not a state, is damaged, or has another version of the format.
        """
        try:
            data = read_plain(path)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:  # A null character in the name raises ValueError.
            raise unreadable(path, error, "the state ") from None
        return cls._parse(path, data) if data else None

    @classmethod
    def _parse(cls, path: Path, data: bytes) -> WarmState:
        try:
            arrays = dict(_members(data))
            about = json.loads(str(arrays.pop("about")))
            version = about["spac_state"]
        except Exception:  # The readers of four formats raise many kinds of errors on foreign bytes.
            raise InputError(f"{path}: not a saved state: name another --state file") from None
        if version != FORMAT:
            raise InputError(
                f"{path}: a saved state of format {version}, this spac reads {FORMAT}: "
                "name another --state file"
            )
        try:
            plan = Plan(arrays.pop("priority"), arrays.pop("threshold"))
            learned = {
                name.removeprefix(_LEARNED): array
                for name, array in arrays.items()
                if name.startswith(_LEARNED)
            }
            facts, scheduler, options = dict(about["target"]), str(about["scheduler"]), dict(about["options"])
            return cls(facts, scheduler, options, learned, plan)
        except (InputError, KeyError, TypeError, ValueError, AttributeError):
            raise InputError(f"{path}: a damaged state: delete it, or name another --state file") from None


def _members(data: bytes) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
    """Yield the name and the array of each entry of an archive, checked against the archive's checksums."""
    with np.load(io.BytesIO(data), allow_pickle=False) as archive:
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise ValueError("one array")
        assert archive.zip is not None
        check_unpacked(archive.zip)
        for name in archive.files:
            yield name, archive[name]


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

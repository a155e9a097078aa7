"""Measured times of types of weights, kept once per machine, build and number of threads."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from spac import _core, _library, env
from spac.errors import InputError
from spac.machine.cpu import cpu_description
from spac.machine.files import write_atomically

UNDISTURBED = 0.9
"""The share of the time for which threads must have had their cores. With less, no measurement is kept."""
T = TypeVar("T")


@dataclass(frozen=True)
class Key:
    """The machine and the build that times belong to."""

    cpu: str
    threads: int
    library: str

    @classmethod
    def of(cls, threads: int) -> Key:
        """Return the key of this machine and this build."""
        file = _library.library_path().stat()
        build = (
            f"{_core.__version__}, {_core.system_info().strip()}, {file.st_size} bytes, {file.st_mtime_ns}"
        )
        return cls(cpu_description(), threads, build)


class KeptTimes(Generic[T]):
    """Times of one kind, by type of weights. Each key has a cache file."""

    def __init__(self, suffix: str, checked: Callable[[Any], T | None]) -> None:
        """Describe the times; `checked` returns a type's times as read from JSON, or None if unusable."""
        self._suffix, self._checked = suffix, checked

    def measured(
        self,
        types: Iterable[str],
        threads: int,
        measure: Callable[[list[str]], tuple[Mapping[str, T], float]],
    ) -> dict[str, T]:
        """Return the times of these types, from the cache or else from a measurement.

        `measure` returns the times and the share of the time for which threads had their cores. A measurement
        is not kept if other programs took too much of the cores. The next run measures again then.
        """
        key, wanted = Key.of(threads), list(types)
        known = self.load(key)
        if missing := [kind for kind in wanted if kind not in known]:
            found, running = measure(missing)
            known |= found
            if running >= UNDISTURBED:
                self._store(key, known)
        return {kind: known[kind] for kind in wanted}

    def load(self, key: Key) -> dict[str, T]:
        """Return the usable times that are kept for this key."""
        try:
            page: Any = json.loads(self.path(key).read_text())
            stored = dict(page["times"]) if page["key"] == asdict(key) else {}
        except (OSError, ValueError, KeyError, TypeError):
            return {}
        checked = {kind: self._checked(times) for kind, times in stored.items()}
        return {kind: times for kind, times in checked.items() if times is not None}

    def path(self, key: Key) -> Path:
        """Return the cache file of this key, which may not exist."""
        text = json.dumps(asdict(key), sort_keys=True)
        name = hashlib.sha256(text.encode()).hexdigest()[:24]
        return env.cache_folder() / "kernels" / f"{name}{self._suffix}.json"

    def _store(self, key: Key, times: Mapping[str, T]) -> None:
        """Write the cache file. Ignore errors, because a later run can measure again."""
        path = self.path(key)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, json.dumps({"key": asdict(key), "times": times}, indent=1).encode())
        except (OSError, InputError):
            pass

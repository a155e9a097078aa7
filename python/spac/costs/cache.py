"""The cache of measured costs between runs.

It has one file for each combination of machine, models and library, in the user's cache folder.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from spac import _core, env
from spac.costs.model import Costs
from spac.errors import InputError
from spac.machine.cpu import cpu_description
from spac.machine.files import check_writable, read_plain, write_atomically

_READ = 1 << 20  # bytes read from each end of a model's file: its header and some of its weights


@dataclass(frozen=True)
class Key:
    """Everything on which costs depend; costs with another key are not used."""

    cpu: str
    threads: int
    device: str
    target: str
    draft: str
    library: str

    @classmethod
    def of(cls, threads: int, device: str, target: Path, draft: Path | None) -> Key:
        """Return the key of models on this machine, or raise InputError if a model's file cannot be read."""
        files = (fingerprint(target), fingerprint(draft) if draft is not None else "none")
        return cls(cpu_description(), threads, device, *files, _library())

    @property
    def path(self) -> Path:
        """The path of this key's file, which may not exist."""
        text = json.dumps(asdict(self), sort_keys=True)
        return env.cache_folder() / "costs" / f"{hashlib.sha256(text.encode()).hexdigest()[:24]}.json"


def _library() -> str:
    """Return a description of the library and its kernels."""
    n_ours = len(_core.trusted_cpu_kernels()) if _core.cpu_kernels_enabled() else 0
    llama = _core.llama_cpp_python_version
    return f"{_core.__version__}, llama-cpp-python {llama}, {n_ours} CPU kernels"


def fingerprint(path: Path) -> str:
    """Return the size of a model's file and a hash of its beginning and its end.

    The rest of the file is not read. Raise InputError if the file cannot be read.
    """
    try:
        with path.open("rb") as file:
            digest = hashlib.sha256(file.read(_READ))
            size = file.seek(0, 2)
            file.seek(max(0, size - _READ))
            digest.update(file.read(_READ))
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    return f"{size}-{digest.hexdigest()[:24]}"


def newest(target: Path, device: str) -> Costs | None:
    """Return the costs that were last stored for a target on a device of this machine; None without any.

    The draft, the threads and the other settings may be any.
    """
    wanted = {"cpu": cpu_description(), "target": fingerprint(target), "library": _library()}
    found = sorted((env.cache_folder() / "costs").glob("*.json"), key=lambda path: -path.stat().st_mtime)
    for path in found:
        try:
            key = Key(**json.loads(read_plain(path))["key"])
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            continue
        same = all(getattr(key, name) == value for name, value in wanted.items())
        if same and key.device.split(",")[0] == device and (costs := load(key)) is not None:
            return costs
    return None


def load(key: Key) -> Costs | None:
    """Return the costs stored for this key, or None if there are none that can be used."""
    try:
        stored: Any = json.loads(read_plain(key.path))
        if stored["key"] != asdict(key):
            return None
        return Costs.from_dict(stored["costs"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):  # InputError is a ValueError
        return None


def store(key: Key, costs: Costs) -> None:
    """Store costs for the next run, or raise InputError if the cache folder cannot be written."""
    make_folder(key.path.parent)
    stored = {"key": asdict(key), "costs": costs.to_dict()}
    write_atomically(key.path, json.dumps(stored, indent=1).encode())


def check(key: Key) -> None:
    """Raise InputError if `store` would raise it."""
    make_folder(key.path.parent)
    check_writable(key.path.with_suffix(".check"))


def make_folder(path: Path) -> None:
    """Make a folder of the cache with its parents, or raise InputError."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{path}: cannot be made: {error.strerror}") from None

"""The store of what is measured on this machine: one folder with a file for each entry.

A file is a `.npz` archive of numpy arrays without pickled objects, which is written whole or not at all. Its
member `about` is JSON, with the format's version, the entry's key and its value. Each entry has a file of its
own, so processes that write at the same time do not lose each other's entries. A file that cannot be used is
ignored, and replaced by the next entry of its key.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from spac import _core, _library, env
from spac.errors import InputError
from spac.machine.cpu import cpu_description
from spac.machine.files import check_unpacked, check_writable, read_plain, unreadable, write_atomically

VERSION = 2
"""The version of the format, which is raised when a value changes its meaning."""
MOST_BYTES = 512 << 20
"""The most bytes of the store. A scheduler's state for 48 layers of 128 experts has 13 MB with `logistic`."""
_READ = 1 << 20  # bytes read from each end of a model's file: its header and some of its weights

Arrays = Mapping[str, np.ndarray[Any, Any]]


@dataclass(frozen=True)
class Key:
    """Everything on which an entry depends: machine, models and build. An entry has one kind of content."""

    kind: str
    cpu: str
    device: str = ""
    threads: int = 0
    target: str = ""
    draft: str = ""
    build: str = ""
    more: str = ""
    """Everything else that the entry depends on, such as the scheduler and its options."""

    @classmethod
    def of(
        cls, kind: str, *, device: str = "", threads: int = 0, target: Path | None = None,
        draft: Path | None = None, timed: bool = True, more: str = "",
    ) -> Key:  # fmt: skip
        """Return the key of an entry. What is left out does not matter to it.

        An entry that is `timed` depends on this processor and this build. Raise InputError if a model's file
        cannot be read.
        """
        models = ["" if file is None else fingerprint(file) for file in (target, draft)]
        cpu, build = (cpu_description(), _build()) if timed else ("", "")
        return cls(kind, cpu, device, threads, models[0], models[1], build, more)

    @property
    def path(self) -> Path:
        """The path of this key's file, which may not exist."""
        text = json.dumps(asdict(self), sort_keys=True)
        return folder() / f"{self.kind}-{hashlib.sha256(text.encode()).hexdigest()[:24]}.npz"


@dataclass(frozen=True)
class Entry:
    """The content of a file."""

    key: Any
    value: dict[str, Any]
    arrays: Arrays


def folder() -> Path:
    """Return the folder of the store. It may not exist yet."""
    return env.cache_folder() / "measured"


def _build() -> str:
    """Return a description of the library, which differs for each build."""
    file = _library.library_path().stat()
    llama = f"llama-cpp-python {_core.llama_cpp_python_version}"
    facts = f"{_core.system_info().strip()}, {file.st_size} bytes, {file.st_mtime_ns}"
    return f"{_core.__version__}, {llama}, {facts}"


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
        raise unreadable(path, error) from None
    return f"{size}-{digest.hexdigest()[:24]}"


def get(key: Key, notes: list[str]) -> Entry | None:
    """Return the entry of a key; None without a usable one. A file that cannot be used adds a note."""
    try:
        entry = read(key.path)
        if entry is None or entry.key == asdict(key):
            return entry
        fault = f"{key.path}: another entry's content"
    except InputError as error:
        fault = str(error)
    notes.append(f"{fault}: it is ignored, and replaced later")
    return None


def newest(kind: str, target: Path, device: str) -> Entry | None:
    """Return the newest entry for a target on a device of this machine; None without any of this build.

    `device` is a name. The draft, the threads and the other settings may be any.
    """
    wanted = {"target": [fingerprint(target)], "cpu": ["", cpu_description()], "build": ["", _build()]}
    for path in sorted(folder().glob(f"{kind}-*.npz"), key=_age):
        with suppress(InputError):
            entry = read(path)
            key = entry.key if entry is not None and isinstance(entry.key, dict) else {}
            fits = all(key.get(name) in values for name, values in wanted.items())
            if fits and str(key.get("device")).split(",")[0] == device:
                return entry
    return None


def put(key: Key, value: Mapping[str, Any], arrays: Arrays | None = None) -> None:
    """Write the entry of a key, or raise InputError. Delete the oldest ones where all take too much."""
    make_folder()
    write(key.path, value, arrays, asdict(key))
    trim()


def check() -> None:
    """Raise InputError if `put` would raise it."""
    make_folder()
    check_writable(folder() / f".check-{os.getpid()}")


def make_folder() -> None:
    """Make the folder with its parents, or raise InputError."""
    try:
        folder().mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder()}: cannot be made: {error.strerror}") from None


def trim(most_bytes: int = MOST_BYTES) -> None:
    """Delete the oldest files until the others have `most_bytes` at most.

    Another process may do the same at the same time. Files that cannot be deleted stay.
    """
    total = 0
    for path in sorted(folder().iterdir(), key=_age):
        with suppress(OSError):
            total += path.stat().st_size
            if total > most_bytes:
                path.unlink()


def _age(path: Path) -> int:
    """Return a number that is higher for older files, and highest for one that has gone."""
    try:
        return -path.stat().st_mtime_ns
    except OSError:
        return 0


def write(path: Path, value: Mapping[str, Any], arrays: Arrays | None = None, key: Any = None) -> None:
    """Write an entry's file, or raise InputError and leave the file unchanged."""
    about = np.array(json.dumps({"spac": VERSION, "key": key, "value": value}))
    data = io.BytesIO()  # Compressing would take seconds where arrays are large.
    members: dict[str, Any] = {"about": about, **(arrays or {})}
    np.savez(data, **members)
    write_atomically(path, data.getvalue())


def read(path: Path, what: str = "an entry of spac's store") -> Entry | None:
    """Return the entry in a file, or None if the file does not exist or is empty.

    Raise InputError if the file is not `what`, is damaged, or has another version of the format.
    """
    try:
        data = read_plain(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:  # A null character in the name raises ValueError.
        raise unreadable(path, error) from None
    if not data:
        return None
    try:
        arrays = _members(data)
        about = json.loads(str(arrays.pop("about")))
        version, key = about["spac"], about["key"]
        value = dict(about["value"]) if version == VERSION else {}
    except Exception:  # The readers of four formats raise many kinds of errors on foreign bytes.
        raise InputError(f"{path}: not {what}, or a damaged one") from None
    if version != VERSION:
        raise InputError(f"{path}: {what} of format {version}, this spac reads {VERSION}")
    return Entry(key, value, arrays)


def _members(data: bytes) -> dict[str, np.ndarray[Any, Any]]:
    """Return the arrays of an archive by name, checked against the archive's checksums."""
    with np.load(io.BytesIO(data), allow_pickle=False) as archive:
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise ValueError("one array")
        assert archive.zip is not None
        check_unpacked(archive.zip)
        return {name: archive[name] for name in archive.files}

"""Downloads by `huggingface_hub`, which has progress, resumption and the cache that tools share.

Its environment variables are valid: HF_HOME, HF_ENDPOINT, HF_TOKEN, HF_HUB_OFFLINE and the others.
"""

from __future__ import annotations

import errno
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spac.errors import InputError
from spac.machine.device_memory import size
from spac.model.hub import cached
from spac.model.hub.names import Model, Name, choose

_HTTP = ("httpx", "httpx2")
"""Packages whose exceptions mean that the hub cannot be reached."""
ATTEMPTS, PAUSE_S = 5, 1.0
"""The attempts in a row that may bring nothing, and the seconds between two."""


@dataclass(frozen=True)
class Access:
    """The way to a hub. An empty `token` leaves it to HF_TOKEN and to the login that `hf` stored."""

    token: str = ""
    offline: bool = False
    quiet: bool = False


class _UnreachableError(Exception):
    """The hub does not answer, or is not to be asked."""


def fetch(name: Name, file: str = "", access: Access | None = None) -> Path:
    """Return the path of a model's first file, after all of its files are in the cache.

    `file` is the path of the file in the repository, if not the quantization decides. Without a connection,
    the files of the cache are used. Raise InputError with one line for every fault.
    """
    access = access or Access()
    hub = cached.library()
    if access.quiet:
        hub.utils.disable_progress_bars()
        hub.utils.logging.set_verbosity_error()
    try:
        with _one_line(name.repo):
            sizes = _listing(hub, name, access)
    except _UnreachableError as why:
        return _from_cache(name, file, str(why))
    model = choose(name, list(sizes), file)
    _check_disk(name.repo, model, sizes)
    attempts = ATTEMPTS
    while True:
        before = _begun(name.repo)
        try:
            with _one_line(name.repo):
                return _download(hub, name, model, access)
        except _UnreachableError as why:
            attempts = ATTEMPTS if _begun(name.repo) > before else attempts - 1
            if not attempts:
                raise InputError(f"{name.repo}: {why}: run it again to go on with the download") from None
            time.sleep(PAUSE_S)


def _begun(repo: str) -> int:
    """Return the bytes of the downloads that have begun and not ended."""
    return sum(path.stat().st_size for path in cached.folder(repo).glob("blobs/*.incomplete"))


def _listing(hub: Any, name: Name, access: Access) -> dict[str, int]:
    """Return the sizes of a repository's files by their paths."""
    if access.offline or hub.constants.HF_HUB_OFFLINE:
        raise _UnreachableError("--offline or HF_HUB_OFFLINE keeps it from being downloaded")
    info = hub.HfApi().model_info(name.repo, token=access.token or None, files_metadata=True)
    return {each.rfilename: each.size or 0 for each in info.siblings or ()}


def _download(hub: Any, name: Name, model: Model, access: Access) -> Path:
    """Return the first file's path, and raise InputError if its parts came from several commits."""
    token = access.token or None
    paths = [Path(hub.hf_hub_download(name.repo, file, token=token)) for file in model.files]
    if len({path.parent for path in paths}) > 1:
        raise InputError(f"{name.repo}: it changed during the download: run it again")
    return paths[0]


def _from_cache(name: Name, file: str, why: str) -> Path:
    """Return the path of a model's first file in the cache, or raise InputError that says `why`."""
    folder = cached.snapshot(name.repo)
    if folder is None:
        raise InputError(f"{name.repo}: {why}, and it is not in the cache")
    there = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.gguf"))
    try:
        return folder / choose(name, there, file).files[0]
    except InputError as fault:
        raise InputError(f"{why}; in the cache, {fault}") from None


def _check_disk(repo: str, model: Model, sizes: dict[str, int]) -> None:
    """Raise InputError if the disk of the cache does not hold what is still to come."""
    hub = cached.library()
    there = [hub.try_to_load_from_cache(repo, file) for file in model.files]
    missing = sum(sizes[file] for file, path in zip(model.files, there, strict=True) if path is None)
    cache = Path(hub.constants.HF_HUB_CACHE)
    to_come = missing - _begun(repo)
    near = next(part for part in (cache, *cache.parents) if part.exists())
    free = shutil.disk_usage(near).free
    if to_come > free:
        raise InputError(
            f"{repo}: {size(to_come)} are to be downloaded, and {cache} has {size(free)} free: "
            "HF_HOME names another folder"
        )


@contextmanager
def _one_line(repo: str) -> Iterator[None]:
    """Turn the library's exceptions into InputError, or into _UnreachableError without a connection."""
    try:
        yield
    except (InputError, _UnreachableError):
        raise
    except Exception as error:
        raise _explained(repo, error) from error


def _explained(repo: str, error: Exception) -> Exception:
    causes = _causes(error)
    codes = [code for each in causes if (code := _status(each))]
    if codes:
        return _refused(repo, codes[0], causes)
    if any(isinstance(each, OSError) and each.errno == errno.ENOSPC for each in causes):
        return InputError(f"{repo}: the disk is full: make room, or name another folder with HF_HOME")
    if "Consistency check failed" in str(error):
        return InputError(f"{repo}: a file is not as long as the hub said: it changed there: run it again")
    if any(type(each).__module__.split(".")[0] in _HTTP for each in causes):
        return _UnreachableError("the hub cannot be reached (HF_ENDPOINT, the network)")
    if isinstance(error, OSError) and error.filename:
        return InputError(f"{error.filename}: cannot be written: {error.strerror}")
    return InputError(f"{repo}: {str(error).strip().splitlines()[0] or type(error).__name__}")


def _refused(repo: str, code: int, causes: list[BaseException]) -> Exception:
    """Return the exception for a status code of the hub."""
    if any(type(each).__name__ == "GatedRepoError" for each in causes):
        return InputError(
            f"{repo}: the hub refuses access ({code}): accept its conditions on its page there, and give "
            "your token as HF_TOKEN"
        )
    if code in (401, 403):
        return InputError(
            f"{repo}: the hub refuses access ({code}): there is no such repository, or it is private: check "
            "the name, and give your token as HF_TOKEN"
        )
    if code == 404:
        return InputError(f"{repo}: the hub has no such repository or file (404): check the name")
    return _UnreachableError(f"the hub answers with status {code}")


def _causes(error: BaseException) -> list[BaseException]:
    """Return an exception and those that caused it."""
    found = [error]
    while (cause := found[-1].__cause__ or found[-1].__context__) is not None and cause not in found:
        found.append(cause)
    return found


def _status(error: BaseException) -> int | None:
    code = getattr(getattr(error, "response", None), "status_code", None)
    return code if isinstance(code, int) else None

"""Models by name: a short name or `OWNER/REPO[:QUANT]` on a hub, its files, and the cache that tools share.

Files are chosen as llama.cpp's `-hf` chooses them, and huggingface_hub downloads them. Its environment
variables are valid: HF_HOME, HF_ENDPOINT, HF_TOKEN, HF_HUB_OFFLINE and the others.
"""

from __future__ import annotations

import errno
import hashlib
import importlib
import re
import shutil
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from spac.errors import InputError
from spac.machine.device_memory import size
from spac.machine.files import read_plain
from spac.model import known

DEFAULTS = ("Q4_K_M", "Q8_0")
"""The quantizations that are looked for if none is named. If there is neither, the first file is taken."""
NO_MODEL = ("mmproj", "imatrix", "mtp-", "eagle3-", "dflash-", "dspark-")
"""Parts of names of files that are no models of their own."""
MOST_LISTED = 12
"""The largest number of names in an error message."""

_NAME = re.compile(r"([\w.-]+/[\w.-]+)(?::([\w.-]+))?")
_PART = re.compile(r"(.+)-(\d{5})-of-(\d{5})", re.IGNORECASE)
_TAG_OF_FILE = re.compile(r"[\w-]+", re.ASCII)
_TAG = re.compile(r"[-.]([a-z0-9_]+)$", re.IGNORECASE)


@dataclass(frozen=True)
class Name:
    """A repository and a quantization in it. An empty `quant` takes llama.cpp's defaults."""

    repo: str
    quant: str = ""

    @classmethod
    def parse(cls, text: str) -> Name:
        """Return the name in a text, which may be a short one, or raise InputError for another form."""
        if not (match := _NAME.fullmatch(known.hub_name(text) or text)) or ".." in text:
            close = known.near(text) or ", ".join(model.name for model in known.MODELS)
            raise InputError(f"'{text}' is not OWNER/REPO or OWNER/REPO:QUANT, nor a short name: {close}")
        return cls(match[1], match[2] or "")


@dataclass(frozen=True)
class Model:
    """A model of a repository: its files in order, the parts of a split one, by their paths there."""

    files: tuple[str, ...]
    n_parts: int = 1
    """The number of parts by the files' names. `files` may have fewer."""

    @property
    def stem(self) -> str:
        """The path without the part's number and without .gguf."""
        return _split(self.files[0])[0]

    @property
    def quant(self) -> str:
        """The quantization that the name ends in; "" if there is none."""
        match = _TAG.search(self.stem)
        return match[1].upper() if match else ""


def models_in(files: Iterable[str]) -> list[Model]:
    """Return the models among a repository's files, in the files' order, without projectors and the like."""
    found: dict[tuple[str, int], list[str]] = {}
    for file in files:
        base = PurePosixPath(file).name
        if file.endswith(".gguf") and not any(word in base for word in NO_MODEL):
            stem, _, n_parts = _split(file)
            found.setdefault((stem, n_parts), []).append(file)
    return [Model(tuple(sorted(parts)), n_parts) for (_, n_parts), parts in found.items()]


def choose(name: Name, files: Sequence[str], file: str = "") -> Model:
    """Return the model that a name means among a repository's files.

    `file` is the path of a file, which then decides alone. Raise InputError with one line if there is no such
    model, if several have this quantization, or if a part is missing.
    """
    models = models_in(files)
    if not models:
        raise InputError(f"{name.repo} has no GGUF file of a model: choose a repository that has")
    model = _by_file(name, models, file) if file else _by_quant(name, models)
    if len(model.files) != model.n_parts:
        raise InputError(f"{name.repo} has {len(model.files)} of {model.n_parts} parts of {model.stem}")
    return model


def labels(models: Sequence[Model]) -> list[str]:
    """Return a word for each model: its quantization, or its first file if that tells it from no other."""
    quants = [model.quant for model in models]
    return [
        model.quant if model.quant and quants.count(model.quant) == 1 else model.files[0] for model in models
    ]


def _split(file: str) -> tuple[str, int, int]:
    """Return path without ending, part and number of parts of a file."""
    stem = file.removesuffix(".gguf")
    match = _PART.fullmatch(stem)
    return (match[1], int(match[2]), int(match[3])) if match else (stem, 1, 1)


def _by_file(name: Name, models: Sequence[Model], file: str) -> Model:
    for model in models:
        if file in model.files:
            return model
    there = _listed([model.files[0] for model in models])
    raise InputError(f"{name.repo} has no model file '{file}': it has {there}")


def _by_quant(name: Name, models: Sequence[Model]) -> Model:
    for quant in (name.quant,) if name.quant else DEFAULTS:
        pattern = re.compile(re.escape(quant) + "[.-]", re.IGNORECASE)
        exact = [model for model in models if model.quant == quant.upper()]
        fitting = exact or [model for model in models if pattern.search(model.files[0])]
        if len(fitting) > 1:
            files = _listed([model.files[0] for model in fitting])
            raise InputError(f"{name.repo} has several models in {quant}: name one with --hf-file: {files}")
        if fitting:
            return fitting[0]
    if not name.quant:
        return models[0]
    raise InputError(f"{name.repo} has no quantization '{name.quant}': it has {_listed(labels(models))}")


def _listed(words: Sequence[str]) -> str:
    more = len(words) - MOST_LISTED
    return ", ".join(words[:MOST_LISTED]) + (f" and {more} more" if more > 0 else "")


INSTALL = "run `pip install 'spac[hf]'`"


@dataclass(frozen=True)
class CachedModel:
    """A model of the cache: the name that `-hf` takes, or the one with a file's path, and its first file."""

    name: str
    path: Path


def library() -> Any:
    """Return the package huggingface_hub, or raise InputError if it is not installed."""
    try:
        for module in ("constants", "utils"):  # the package imports its modules late
            importlib.import_module(f"huggingface_hub.{module}")
        hub = importlib.import_module("huggingface_hub")
    except ImportError:
        raise InputError(f"models by name need huggingface_hub: {INSTALL}") from None
    hooks = hub.utils.get_session().event_hooks["response"]
    if _count_redirects not in hooks:
        hooks.append(_count_redirects)
    return hub


def _count_redirects(response: Any) -> None:
    """Raise InputError behind too many redirects in a row. huggingface_hub follows relative ones for ever."""
    _redirects.n = getattr(_redirects, "n", 0) + 1 if response.is_redirect else 0
    if _redirects.n > MOST_REDIRECTS:
        raise InputError(f"the hub leads from {response.url.host} to itself again and again (HF_ENDPOINT)")


def folder(repo: str) -> Path:
    """Return the folder of a repository in the cache, which may not exist."""
    return Path(library().constants.HF_HUB_CACHE) / f"models--{repo.replace('/', '--')}"


def snapshot(repo: str) -> Path | None:
    """Return the folder with the files of a repository's main branch; None if nothing is in the cache."""
    try:
        commit = read_plain(folder(repo) / "refs" / "main").decode().strip()
    except (OSError, ValueError):
        return None
    found = folder(repo) / "snapshots" / commit
    return found if commit and found.is_dir() else None


def cached_models() -> list[CachedModel]:
    """Return the models of the cache with all of their parts, by name."""
    found = []
    for place in sorted(Path(library().constants.HF_HUB_CACHE).glob("models--*--*")):
        repo = "/".join(place.name.split("--", 2)[1:])
        if (files := snapshot(repo)) is None:
            continue
        models = models_in(sorted(path.relative_to(files).as_posix() for path in files.rglob("*.gguf")))
        for label, model in zip(labels(models), models, strict=True):
            if len(model.files) == model.n_parts:
                name = f"{repo}:{label}" if label == model.quant else f"{repo} --hf-file {label}"
                found.append(CachedModel(name, files / model.files[0]))
    return found


_HTTP = ("httpx", "httpx2")
"""Packages whose exceptions mean that the hub cannot be reached."""
MOST_REDIRECTS, _redirects = 20, threading.local()
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
    hub = library()
    if access.quiet:
        hub.utils.disable_progress_bars()
        hub.utils.logging.set_verbosity_error()
    try:
        with _one_line(name.repo):
            listing = _listing(hub, name, access)
    except _UnreachableError as why:
        return _from_cache(name, file, str(why))
    model = choose(name, list(listing), file)
    _check_disk(name.repo, model, {each: size for each, (size, _) in listing.items()})
    attempts = ATTEMPTS
    while True:
        before = _begun(name.repo)
        try:
            with _one_line(name.repo):
                return _download(hub, name, model, access, {each: sha for each, (_, sha) in listing.items()})
        except _UnreachableError as why:
            attempts = ATTEMPTS if _begun(name.repo) > before else attempts - 1
            if not attempts:
                raise InputError(f"{name.repo}: {why}: run it again to go on with the download") from None
            time.sleep(PAUSE_S)


def _begun(repo: str) -> int:
    """Return the bytes of the downloads that have begun and not ended."""
    return sum(path.stat().st_size for path in folder(repo).glob("blobs/*.incomplete"))


def _listing(hub: Any, name: Name, access: Access) -> dict[str, tuple[int, str]]:
    """Return the sizes of a repository's files by their paths, and their SHA-256 ("" if the hub has none)."""
    if access.offline or hub.constants.HF_HUB_OFFLINE:
        raise _UnreachableError("--offline or HF_HUB_OFFLINE keeps it from being downloaded")
    info = hub.HfApi().model_info(name.repo, token=access.token or None, files_metadata=True)
    return {
        each.rfilename: (each.size or 0, each.lfs.sha256 if each.lfs is not None else "")
        for each in info.siblings or ()
    }


def _download(hub: Any, name: Name, model: Model, access: Access, sums: Mapping[str, str]) -> Path:
    """Return the first file's path.

    Raise InputError if the parts of a split model came from several commits, if a file is not the one that
    the hub lists, or if the hub gives it a name in the cache that is none.
    """
    token, paths = access.token or None, []
    for file in model.files:
        tag = hub.get_hf_file_metadata(hub.hf_hub_url(name.repo, file), token=token).etag
        if tag is None or not _TAG_OF_FILE.fullmatch(tag):
            raise InputError(f"{name.repo}: the hub gives {file} the tag {tag!r}, which is no file's name")
        is_there = isinstance(hub.try_to_load_from_cache(name.repo, file), str)
        paths.append(path := Path(hub.hf_hub_download(name.repo, file, token=token)))
        if not is_there:
            _check_sum(name.repo, path, sums.get(file, ""))
    if len({path.parent for path in paths}) > 1:
        raise InputError(f"{name.repo}: it changed during the download: run it again")
    return paths[0]


def _check_sum(repo: str, path: Path, wanted: str) -> None:
    """Raise InputError, and remove the file, if its SHA-256 is another one than the hub's list has."""
    if not wanted:
        return
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != wanted:
        path.resolve().unlink()
        path.unlink()
        raise InputError(f"{repo}: {path.name} came with other content than the hub lists: run it again")


def cached(name: Name) -> Path | None:
    """Return the path of a model's first file if all of its files are in the cache; else None."""
    try:
        return _from_cache(name, "", "")
    except InputError:
        return None


def _from_cache(name: Name, file: str, why: str) -> Path:
    """Return the path of a model's first file in the cache, or raise InputError that says `why`."""
    found = snapshot(name.repo)
    if found is None:
        raise InputError(f"{name.repo}: {why}, and it is not in the cache")
    there = sorted(path.relative_to(found).as_posix() for path in found.rglob("*.gguf"))
    try:
        return found / choose(name, there, file).files[0]
    except InputError as fault:
        raise InputError(f"{why}; in the cache, {fault}") from None


def _check_disk(repo: str, model: Model, sizes: dict[str, int]) -> None:
    """Raise InputError if the disk of the cache does not hold what is still to come."""
    hub = library()
    there = [hub.try_to_load_from_cache(repo, file) for file in model.files]
    check_disk(repo, sum(sizes[file] for file, path in zip(model.files, there, strict=True) if path is None))


def check_disk(repo: str, missing: int) -> None:
    """Raise InputError if the disk of the cache does not hold `missing` bytes of a repository."""
    cache = Path(library().constants.HF_HUB_CACHE)
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

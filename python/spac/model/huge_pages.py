"""Weights on pages of 2 MB: the decision to copy a model's files to such pages, the copying, and its notes.

llama.cpp maps a file, and the CPU then reads the weights from pages of 4 KB. The copy lies in anonymous
memory on pages of 2 MB and takes the mapping's place (csrc/core/huge_pages.h).
"""

from __future__ import annotations

import glob
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spac import _core
from spac.config import EngineConfig
from spac.errors import SpacError, one_line
from spac.machine import host_memory
from spac.machine.cpu import physical_cores
from spac.machine.device_memory import size
from spac.machine.topology import read_cpus, shared_nodes
from spac.model.gguf.info import ModelInfo
from spac.model.paging import bytes_beside
from spac.model.params import LOAD_MODES

LEAST = 256 << 20
"""Bytes of weights. `auto` leaves smaller models mapped, because their copy gains little."""
LEAST_GAIN = 1.1
"""`auto` copies if the copy is read at least this many times as fast as the mapping."""
LONGEST_PAYBACK = 120.0
"""Seconds of decoding. `auto` gives up a copy that takes more time than it saves within them."""
STALL_PAGE_NS = 2_000_000
"""Nanoseconds. A page's first touch that takes longer counts as a stall."""
STALL_TOTAL_NS = 2_000_000_000
"""Nanoseconds of all stalls of one file together. After them, its rest is copied to small pages."""
STALL_COMPACTIONS = 1
"""The number of memory compactions that the system must also have counted meanwhile."""
_MOST_THREADS = 8
_MEMORY_SHARE = 7 / 8
"""The copy may take this share of the available memory. Contexts and other programs need the rest."""
_COPY_SHARE = 0.9
"""The copying's share of the reported progress. The rest belongs to llama.cpp's own loading."""
_SAMPLE = 128 << 20
"""Bytes of a file that are read to measure the gain. They exceed most processors' caches."""
_SETTINGS = Path("/sys/kernel/mm/transparent_hugepage")

Progress = Callable[[float], bool]


@dataclass(frozen=True)
class Choice:
    """The decision about copying the files of a model."""

    copy: bool
    drop_cache: bool = False
    """True if the system's cache of the files is dropped, because memory does not hold both."""
    gain: float = 0.0
    """The factor by which the copy is read faster than the mapping; 0 if it was not measured."""
    most_seconds: float = 0.0
    """Seconds of the threads' processor time after which the copy no longer pays; 0 for no limit."""
    why: str = ""
    """The reason to keep the files mapped, in words for users; "" if users need no note."""


def missing() -> str:
    """Return the reason why the system gives no transparent huge pages of 2 MB; "" if it gives them."""
    chosen = _chosen(_SETTINGS / f"hugepages-{_core.HUGE_PAGE >> 10}kB" / "enabled")
    if chosen in ("", "inherit"):
        chosen = _chosen(_SETTINGS / "enabled")
    if chosen == "":
        return "the system has no transparent huge pages"
    if chosen == "never":
        return f"transparent huge pages are off (as root: echo madvise > {_SETTINGS / 'enabled'})"
    return ""


def _chosen(path: Path) -> str:
    """Return the word in brackets, which is the chosen setting; "" if there is none."""
    try:
        match = re.search(r"\[(\w+)\]", path.read_text())
    except OSError:
        return ""
    return match[1] if match else ""


def read_rates(path: Path, n_threads: int) -> _core.ReadRates:
    """Measure how fast this number of threads reads a file's mapping, and a copy of it on huge pages.

    It takes 0.1 to 0.3 s, and longer if the first samples come from a slow disk. Raises SpacError if the
    measurement is not possible.
    """
    with path.open("rb") as file:
        n_bytes = min(512 << 20, max(_SAMPLE, n_threads * (16 << 20)))
        return _core.measure_read_rates(file.fileno(), n_bytes, n_threads)


def _largest_part(path: Path) -> Path:
    """Return the largest file of a model in parts, because the first part may have no weights."""
    pattern = re.sub(r"-\d{5}-of-(?=\d{5}\.gguf$)", "-[0-9][0-9][0-9][0-9][0-9]-of-", glob.escape(path.name))
    return max(path.parent.glob(pattern), key=lambda part: part.stat().st_size, default=path)


def weigh(info: ModelInfo, n_threads: int) -> tuple[float, str]:
    """Return the gain of a copy's reading speed, and the reason against a copy, which is "" if it pays."""
    try:
        rates = read_rates(_largest_part(info.path), n_threads)
    except (OSError, SpacError) as error:
        return 0.0, f"the gain could not be measured ({one_line(str(error))})"
    if rates.huge_bytes < rates.bytes // 2:
        return 0.0, "the system had no pages of 2 MB for a measurement"
    if rates.gain < LEAST_GAIN:
        return rates.gain, f"a copy would be read only {rates.gain:.2f} times as fast"
    return rates.gain, ""


def outlook(info: ModelInfo | None, n_threads: int) -> tuple[str, str]:
    """Return the pages that a model could use, and the reason to keep its files mapped, for `spac doctor`."""
    if why := missing():
        return "none", why
    if info is None or info.file_size < LEAST:
        return "pages of 2 MB", ""
    gain, why = weigh(info, n_threads)
    faster = f"; a copy of {info.path.name} is read {gain:.2f} times as fast as its mapping" if gain else ""
    return f"pages of 2 MB{faster}", why


def choose(
    config: EngineConfig,
    info: ModelInfo,
    params: Mapping[str, Any],
    device: _core.DeviceInfo | None,
    *,
    paged: bool,
    is_draft: bool,
    n_threads: int,
) -> Choice:
    """Decide if a model's files are copied. `params` has the fields of llama_model_params that are set."""
    wanted = config.huge_pages
    if wanted == "off":
        return Choice(False)
    if paged:
        return Choice(False, why="paging leaves the experts in the file" if wanted == "on" else "")
    mapped = (LOAD_MODES[name] for name in ("auto", "mmap", "mmap+mlock"))
    if params.get("load_mode", LOAD_MODES[config.load_mode]) not in mapped:
        return Choice(False, why=f"load mode {config.load_mode} maps no file" if wanted == "on" else "")
    if wanted == "auto" and _read_bytes(info, params, device, is_draft=is_draft) < LEAST:
        return Choice(False)
    if why := missing():
        return Choice(False, why=why)
    beside = 0 if is_draft else bytes_beside(config, info, device)
    allowed = int(_MEMORY_SHARE * host_memory.available())
    if info.file_size + beside > allowed:
        return Choice(False, why=f"a copy of {size(info.file_size)} does not fit into memory beside the rest")
    gain, why = weigh(info, n_threads) if wanted == "auto" else (0.0, "")
    if why:
        return Choice(False, why=why)
    most_seconds = LONGEST_PAYBACK * (1 - 1 / gain) if gain else 0.0
    return Choice(
        True, drop_cache=2 * info.file_size + beside > allowed, gain=gain, most_seconds=most_seconds
    )


def _read_bytes(
    info: ModelInfo, params: Mapping[str, Any], device: _core.DeviceInfo | None, *, is_draft: bool
) -> int:
    """Return the number of the model's bytes that the CPU reads from llama.cpp's mapping."""
    if device is not None:
        return 0 if is_draft else info.expert_bytes
    return 0 if params.get("use_extra_bufts", True) else info.file_size  # repacked weights lie outside it


class _Report:
    """Reports a model's loaded share to `progress`: first the copying, then llama.cpp's own loading."""

    def __init__(self, progress: Progress | None, n_bytes: int) -> None:
        self._progress, self._n_bytes, self._copied = progress, max(1, n_bytes), 0.0

    def copying(self, done: int) -> bool:
        """Report that `done` bytes are copied. Python also runs signal handlers during this call."""
        self._copied = _COPY_SHARE * min(1.0, done / self._n_bytes)
        return self._progress is None or self._progress(self._copied)

    def loading(self, done: float) -> bool:
        """Report that llama.cpp has done this share of its loading, 0 to 1."""
        return self._progress is None or self._progress(self._copied + (1 - self._copied) * done)


class Copying:
    """Copies the files of one model while it loads. It reports to `progress`, which can stop it."""

    def __init__(self, info: ModelInfo, choice: Choice, progress: Progress | None = None) -> None:
        self._name, self._choice = info.path.name, choice
        self._report = _Report(progress, info.file_size)
        self._copies: _core.HugeCopies | None = None
        if choice.copy:
            n_threads = min(_MOST_THREADS, physical_cores())
            stalls = (STALL_PAGE_NS, STALL_TOTAL_NS, STALL_COMPACTIONS)
            self._copies = _core.HugeCopies(
                n_threads, choice.drop_cache, choice.most_seconds, *stalls, self._report.copying,
                shared_nodes(read_cpus()),
            )  # fmt: skip
        self.loading: Progress | None = self._report.loading if progress is not None else None
        """The callback for llama.cpp's own loading, which gets 0 to 1; None without `progress`."""

    @property
    def n_bytes(self) -> int:
        """The size of the copy in bytes; 0 if the files are mapped."""
        return self._copies.bytes if self._copies is not None else 0

    @contextmanager
    def scope(self, *, paged: bool = False) -> Iterator[_core.LoadScope]:
        """Open a LoadScope for loading the model. Exceptions of `progress` leave it unchanged."""
        with _core.LoadScope(paged, self._copies) as scope:
            try:
                yield scope
            except Exception:
                if self._copies is not None and self._copies.error is not None:
                    raise self._copies.error from None
                raise

    def notes(self) -> list[str]:
        """Return notes for users about the copy, once the model is loaded."""
        copies = self._copies
        if copies is None or copies.bytes == 0:
            why = self._choice.why if copies is None else copies.failure or "llama.cpp mapped no file"
            return [f"{self._name}: its weights stay on small pages: {why}"] if why else []
        what = f"{self._name}: {size(copies.bytes)} were copied in {copies.seconds:.1f} s"
        gain = self._choice.gain
        faster = f", which are read {gain:.2f} times as fast as the mapping" if gain else ""
        if copies.bytes - copies.huge_bytes < max(copies.bytes // 50, 2 * _core.HUGE_PAGE):
            return [f"{what} to pages of 2 MB{faster}"]
        reason = "took too long to find more" if copies.stalled else "had no more"
        return [f"{what}, {size(copies.huge_bytes)} of them to pages of 2 MB{faster}; the system {reason}"]

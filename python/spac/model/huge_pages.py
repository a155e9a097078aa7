"""Weights on pages of 2 MB (`--huge-pages on`): the copying of a model's files to such pages, and its notes.

llama.cpp maps a file, and the CPU then reads the weights from pages of 4 KB. The copy lies in anonymous
memory on pages of 2 MB and takes the mapping's place (csrc/core/huge_pages.h).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from spac import _core
from spac.config import EngineConfig
from spac.machine import host_memory
from spac.machine.cpu import physical_cores
from spac.machine.device_memory import size
from spac.machine.topology import read_cpus, shared_nodes
from spac.model.gguf.info import ModelInfo
from spac.model.paging import bytes_beside
from spac.model.params import LOAD_MODES

_MOST_THREADS = 8
_MEMORY_SHARE = 7 / 8
"""The copy may take this share of the available memory. Contexts and other programs need the rest."""
_COPY_SHARE = 0.9
"""The copying's share of the reported progress. The rest belongs to llama.cpp's own loading."""
_SETTINGS = Path("/sys/kernel/mm/transparent_hugepage")

Progress = Callable[[float], bool]


def missing() -> str:
    """Return the reason why the system gives no transparent huge pages of 2 MB; "" if it gives them."""
    chosen = _chosen(_SETTINGS / "hugepages-2048kB/enabled")
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


def obstacle(
    config: EngineConfig,
    info: ModelInfo,
    params: Mapping[str, Any],
    device: _core.DeviceInfo | None,
    *,
    paged: bool,
    is_draft: bool,
) -> str:
    """Return the reason why a model's files cannot be copied, in words for users; "" if they can be.

    `params` has the fields of llama_model_params that are set.
    """
    if paged:
        return "paging leaves the experts in the file"
    mapped = (LOAD_MODES[name] for name in ("auto", "mmap", "mmap+mlock"))
    if params.get("load_mode", LOAD_MODES[config.load_mode]) not in mapped:
        return f"load mode {config.load_mode} maps no file"
    beside = 0 if is_draft else bytes_beside(config, info, device)
    if info.file_size + beside > _MEMORY_SHARE * host_memory.available():
        return f"a copy of {size(info.file_size)} does not fit into memory beside the rest"
    return missing()


class Copying:
    """Copies the files of one model while it loads, or leaves them mapped."""

    def __init__(self, info: ModelInfo, progress: Progress | None, *, copies: bool, obstacle: str) -> None:
        """Prepare the loading. `progress` gets the loaded share and can stop it.

        First comes the share of the copying, then that of llama.cpp's own loading. `obstacle` is the reason
        why a copy that was wanted is not made.
        """
        self._name, self._n_bytes, self._progress = info.path.name, max(1, info.file_size), progress
        self._obstacle, self._copied = obstacle, 0.0
        self._copies: _core.HugeCopies | None = None
        if copies:
            n_threads = min(_MOST_THREADS, physical_cores())
            self._copies = _core.HugeCopies(n_threads, shared_nodes(read_cpus()), self._report_copying)
        self.loading: Progress | None = self._report_loading if progress is not None else None
        """The callback for llama.cpp's own loading, which gets 0 to 1; None without `progress`."""

    def _report_copying(self, done: int) -> bool:
        """Report that `done` bytes are copied. Python also runs signal handlers during this call."""
        self._copied = _COPY_SHARE * min(1.0, done / self._n_bytes)
        return self._progress is None or self._progress(self._copied)

    def _report_loading(self, done: float) -> bool:
        """Report that llama.cpp has done this share of its loading, 0 to 1."""
        return self._progress is None or self._progress(self._copied + (1 - self._copied) * done)

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
            why = self._obstacle if copies is None else copies.failure or "llama.cpp mapped no file"
            return [f"{self._name}: its weights stay on small pages: {why}"] if why else []
        what = f"{self._name}: {size(copies.bytes)} were copied in {copies.seconds:.1f} s"
        return [f"{what}, {size(copies.huge_bytes)} of them to pages of 2 MB"]

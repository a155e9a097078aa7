"""Paging: experts that host memory cannot hold stay in the file and are read when they are needed."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

from spac import _core
from spac.config import EngineConfig
from spac.errors import InputError, OutOfMemoryError
from spac.machine import host_memory
from spac.machine.device_memory import size
from spac.model.gguf.check import part_paths
from spac.model.gguf.header import HeaderError, read_header
from spac.model.gguf.info import EXPERTS, ModelInfo

_SHARE = 15 / 16
"""The share of the available memory that experts may take.

Contexts and other programs need the rest. A system without free memory drops pages that are in use.
"""
AUTO_SHARE = 0.25
"""The share of the experts that slots in the host's memory hold by default."""
_MOUNTS = Path("/proc/self/mountinfo")


def is_paged(config: EngineConfig, info: ModelInfo, device: _core.DeviceInfo | None) -> bool:
    """Return True if the target's experts stay in the file and are read when they are needed.

    Raises InputError if paging is on and the load mode reads or locks the file. Raises OutOfMemoryError if
    memory does not hold the experts and the load mode prevents paging.
    """
    if device is None or not info.is_moe or config.gpu_layers.count == 0:
        return False
    mapped = config.load_mode in ("auto", "mmap")
    if config.paging == "on" and not mapped:
        raise InputError(
            f"paging on: experts stay in the file, which load mode {config.load_mode} reads or locks "
            "(--no-mmap, --mlock): give one of them"
        )
    if config.paging != "auto":
        return config.paging == "on"
    if not mapped:
        _check_unmapped(config, info)
        return False
    room = host_memory.available()
    if room == 0 or _in_memory(info.path):
        return False
    return info.expert_bytes + bytes_beside(config, info, device) > _SHARE * room


def paging_note(info: ModelInfo) -> str:
    """Return one line for users that says why paging is on."""
    return (
        f"{info.path.name}: memory ({size(host_memory.available())} available) does not hold all of its "
        f"experts ({size(info.expert_bytes)}): they are read from the file as they are needed"
    )


def bytes_beside(config: EngineConfig, info: ModelInfo, device: _core.DeviceInfo | None) -> int:
    """Return the bytes of host memory that dense parts, slots and the draft take.

    The result is 0 if there is no device, and if the device has memory of its own.
    """
    if device is None or not device.shares_host_memory:
        return 0
    slots = config.slots
    n_experts = max(1, info.n_expert * info.n_expert_layers)
    share = AUTO_SHARE if slots.is_auto else slots.of(n_experts) / n_experts
    draft = Path(config.draft or "")  # Some draft types do not use it, so it may not exist.
    draft_bytes = draft.stat().st_size if draft.is_file() else 0
    return info.file_size - info.expert_bytes + int(share * info.expert_bytes) + draft_bytes


def give_back(path: Path, *, experts_too: bool = False) -> None:
    """Give the system's cache of dense weights back, which the device has read from a file.

    With `experts_too`, all of the file is given back. Mapped pages stay. Nothing is raised: the cache is the
    system's, and what is read again comes from the file.
    """
    with suppress(HeaderError, OSError):
        for part in part_paths(path, read_header(path)):
            header = read_header(part)
            with part.open("rb") as file:
                for tensor in header.tensors:
                    if experts_too or not EXPERTS.search(tensor.name):
                        start = header.data_offset + tensor.offset
                        os.posix_fadvise(file.fileno(), start, tensor.n_bytes, os.POSIX_FADV_DONTNEED)


def _check_unmapped(config: EngineConfig, info: ModelInfo) -> None:
    """Raise OutOfMemoryError if memory and swap cannot hold the experts of a model that is not mapped.

    The system would end the process. With mmap+mlock the file stays mapped, also if it cannot be locked.
    """
    room = host_memory.most() + host_memory.swap()
    if config.load_mode != "mmap+mlock" and info.expert_bytes > room > 0:
        raise OutOfMemoryError(
            f"{info.path.name}: {size(info.expert_bytes)} of experts do not fit into {size(room)} of memory: "
            f"leave out load mode {config.load_mode} (--no-mmap), and they are read from the file as needed"
        )


def _in_memory(path: Path) -> bool:
    """Return True if the file system of a file is in memory."""
    try:
        lines = _MOUNTS.read_text().splitlines()
    except OSError:
        return False
    mounts = {}
    for line in lines:
        if match := re.match(r"\d+ \d+ \S+ \S+ (\S+) .*? - (\S+) ", line):
            mounts[match[1]] = match[2]
    parents = [path.resolve(), *path.resolve().parents]
    return next((mounts[str(p)] for p in parents if str(p) in mounts), "") in ("tmpfs", "ramfs")

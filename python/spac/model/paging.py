"""Models whose experts are more than host memory holds: these are read from the file as they are needed."""

from __future__ import annotations

import re
from pathlib import Path

from spac import _core
from spac.config import EngineConfig, Slots
from spac.config.context import layers_of
from spac.errors import InputError, OutOfMemoryError
from spac.machine import host_memory
from spac.machine.device_memory import size
from spac.model.gguf.info import ModelInfo

_SHARE = 15 / 16
"""Of what is available: contexts and everybody else need some, and a system that has none left drops pages
that are wanted."""
_AUTO_SLOTS = 0.25
"""Of the experts, that the stand-in takes by itself."""
_MOUNTS = Path("/proc/self/mountinfo")


def is_paged(config: EngineConfig, info: ModelInfo, device: _core.DeviceInfo | None) -> bool:
    """Whether the target's experts are left in the file, to be read as they are needed.

    Raises InputError where they cannot be, OutOfMemoryError where they would have to be.
    """
    wanted = layers_of(config.gpu_layers, "gpu_layers")
    if device is None or not info.is_moe or wanted == 0:
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
    """One line for users."""
    return (
        f"{info.path.name}: memory ({size(host_memory.available())} available) does not hold all of its "
        f"experts ({size(info.expert_bytes)}): they are read from the file as they are needed"
    )


def bytes_beside(config: EngineConfig, info: ModelInfo, device: _core.DeviceInfo | None) -> int:
    """Return the bytes of host memory that a device without memory of its own takes: dense parts, slots and
    the draft."""
    if device is None or not device.is_stand_in:
        return 0
    slots = Slots.parse(config.slots)
    n_experts = max(1, info.n_expert * info.n_expert_layers)
    share = _AUTO_SLOTS if slots.is_auto else slots.of(n_experts) / n_experts
    draft = (
        Path(config.draft) if config.draft is not None else None
    )  # unused by some types, and not looked for
    draft_bytes = draft.stat().st_size if draft is not None and draft.is_file() else 0
    return info.file_size - info.expert_bytes + int(share * info.expert_bytes) + draft_bytes


def _check_unmapped(config: EngineConfig, info: ModelInfo) -> None:
    """Without a mapping, what memory and swap do not hold ends the process. A mapping that cannot be locked
    stays one."""
    room = host_memory.most() + host_memory.swap()
    if config.load_mode != "mmap+mlock" and info.expert_bytes > room > 0:
        raise OutOfMemoryError(
            f"{info.path.name}: {size(info.expert_bytes)} of experts do not fit into {size(room)} of memory: "
            f"leave out load mode {config.load_mode} (--no-mmap), and they are read from the file as needed"
        )


def _in_memory(path: Path) -> bool:
    """Whether its file system is memory."""
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

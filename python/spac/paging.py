"""Models whose experts are more than host memory holds: these are read from the file as they are needed."""

from __future__ import annotations

from spac import _core, host_memory
from spac.config import EngineConfig
from spac.errors import InputError, OutOfMemoryError
from spac.gguf_info import ModelInfo
from spac.vram import RamLimit, size

_SHARE = 7 / 8
"""Of what is available: contexts, the draft and everybody else need some, and a system that has none left
drops pages that are wanted."""


def expert_memory(config: EngineConfig, info: ModelInfo, device: _core.DeviceInfo | None) -> int:
    """Bytes of host memory that the target's experts may take, where they are more than that; 0: they are
    not. Raises InputError where a limit cannot be kept, OutOfMemoryError where memory cannot hold the model.
    """
    if device is None or not info.is_moe:
        return 0
    mapped = config.load_mode in ("auto", "mmap")
    total = host_memory.most()
    if not mapped:
        _check_unmapped(config, info, total)
        return 0
    if config.ram_limit is not None:
        limit = RamLimit.parse(config.ram_limit).of(total)
    else:
        dense = (
            info.file_size - info.expert_bytes if device.is_stand_in else 0
        )  # the stand-in's memory is the host's
        room = host_memory.available()
        limit = max(1, int(_SHARE * room) - dense) if room else info.expert_bytes
    return limit if limit < info.expert_bytes else 0


def _check_unmapped(config: EngineConfig, info: ModelInfo, total: int) -> None:
    how = f"--load-mode {config.load_mode}"
    if config.ram_limit is not None:
        raise InputError(f"--ram-limit: experts stay in the file, so give no {how} (--no-mmap, --mlock)")
    if info.expert_bytes > total > 0:
        raise OutOfMemoryError(
            f"{info.path.name}: {size(info.expert_bytes)} of experts do not fit into {size(total)} of "
            f"memory: leave out {how} (--no-mmap, --mlock), and they are read from the file as needed"
        )

"""A device's memory: how much of it spac may take, and the words for what does not fit."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import spac._core as _core

MARGIN_SHARE = 0.05  # of the device's memory, or of the limit, that stays free
MARGIN_LEAST = 256 << 20  # on a real device, whose libraries allocate when they are first used
MARGIN_MOST = 2 << 30  # these need no more on a larger one

_UNITS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt])(i?b)?")


def parse_size(text: str) -> int | None:
    """The bytes that a size with a unit says; None where it is none."""
    if not (match := _SIZE.fullmatch(text.strip().lower())):
        return None
    base = 1000 if match[3] == "b" else 1024
    return int(float(match[1]) * base ** _UNITS[match[2]])


def size(n_bytes: int) -> str:
    """A number of bytes for a message."""
    return f"{n_bytes / 2**30:.1f} GiB" if n_bytes >= 1 << 30 else f"{n_bytes / 2**20:.1f} MiB"


def room_of(device: str, memory: _core.DeviceMemory) -> str:
    """What a device may hold, for a message."""
    if memory.limit:
        return f"the {size(memory.limit)} of {device} that --vram-limit allows"
    return f"the memory of {device}"


def shortage(device: str, asked: int, memory: _core.DeviceMemory) -> str:
    """Why `asked` bytes more were refused: what is needed, and what there is."""
    if memory.limit:
        needed = f"at least {size(memory.used + asked)} are needed beside the experts"
        return f"{needed}, and --vram-limit allows {size(memory.limit)} of {device}"
    needed = f"{size(asked)} more are needed beside the experts"
    return f"{needed}, and {size(memory.free)} of the {size(memory.total)} of {device} are free"


def in_use(device: str) -> int:
    """Bytes of this process's buffers on a device; 0 for "cpu" and unknown ones."""
    from spac import _core  # late: a configuration needs no library

    return next((each.memory.used for each in _core.devices() if each.name == device), 0)


def margin(n_bytes: int, *, is_stand_in: bool) -> int:
    """Bytes that slots leave free of a device, or a limit, of `n_bytes`: pools and handles of the device's
    libraries are in nobody's account."""
    share = int(n_bytes * MARGIN_SHARE)
    return share if is_stand_in else min(max(share, MARGIN_LEAST), MARGIN_MOST)

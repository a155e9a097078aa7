"""A device's memory: sizes, the margin that spac leaves free, and messages about lacking memory."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import spac._core as _core

MARGIN_SHARE = 0.05
"""The share of the device's memory, or of the limit, that stays free."""
MARGIN_LEAST = 256 << 20
"""Bytes. The least margin in a device's own memory. Its libraries allocate when they are first used."""
MARGIN_MOST = 2 << 30
"""Bytes. The largest margin in a device's own memory. Its libraries need no more on a larger device."""

DESKTOP = 512 << 20
"""Bytes beside the margin for the desktop that a card shows: its windows take memory as they come."""

SIZES = "a size (8G or 8GiB, 8192M, 8GB for 10^9 bytes each)"
"""The texts that `parse_size` reads, for messages."""
_UNITS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt])(i?b)?")


def parse_size(text: str) -> int | None:
    """Return the bytes of a size with a unit, such as "8G"; None if the text is not such a size."""
    if not (match := _SIZE.fullmatch(text.strip().lower())):
        return None
    base = 1000 if match[3] == "b" else 1024
    return int(float(match[1]) * base ** _UNITS[match[2]])


def size(n_bytes: int) -> str:
    """Return a number of bytes as text in GiB or MiB."""
    return f"{n_bytes / 2**30:.1f} GiB" if n_bytes >= 1 << 30 else f"{n_bytes / 2**20:.1f} MiB"


def room_of(device: str, memory: _core.DeviceMemory) -> str:
    """Return a phrase for the memory that spac may use on a device: its limit, or all of it."""
    if memory.limit:
        return f"the {size(memory.limit)} of {device} that --vram-limit allows"
    return f"the memory of {device}"


def shortage(device: str, asked: int, memory: _core.DeviceMemory) -> str:
    """Return the reason why a device refused `asked` more bytes: the bytes needed and the bytes there are."""
    if memory.limit:
        needed = f"at least {size(memory.used + asked)} are needed beside the experts"
        return f"{needed}, and --vram-limit allows {size(memory.limit)} of {device}"
    needed = f"{size(asked)} more are needed beside the experts"
    return f"{needed}, and {size(memory.free)} of the {size(memory.total)} of {device} are free"


def simulated_index(device: str) -> int | None:
    """Return the index of a simulated device, whose names are simulated, simulated1, …; None for others."""
    match = re.fullmatch(r"simulated(\d*)", device.lower())
    return int(match[1] or 0) if match else None


def in_use(devices: str) -> int:
    """Return the bytes of this process's buffers on devices, whose names have commas between them.

    The result is 0 for "cpu" and for unknown devices.
    """
    from spac import _core  # late: a configuration does not need the library

    names = devices.split(",")
    return sum(each.memory.used for each in _core.devices() if each.name in names)


def spare(device: _core.DeviceInfo, allowed: int | None = None) -> int:
    """Return the bytes that slots leave free on a device, or within `allowed` bytes of it.

    It is the margin, and on a whole card also room for the desktop that it shows.
    """
    from spac.machine import nvidia  # late: a configuration does not need it

    n_bytes = device.memory.size if allowed is None else allowed
    shows = n_bytes >= device.memory.total and nvidia.shows_desktop(device.name, device.pci)
    return margin(n_bytes, shares_host_memory=device.shares_host_memory) + DESKTOP * shows


def margin(n_bytes: int, *, shares_host_memory: bool) -> int:
    """Return the bytes that slots leave free on a device, or within a limit, of `n_bytes`.

    The device's libraries allocate pools and handles there, which spac does not count.
    """
    share = int(n_bytes * MARGIN_SHARE)
    return share if shares_host_memory else min(max(share, MARGIN_LEAST), MARGIN_MOST)

"""The host memory that this process may take, within the limits of its control groups."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from spac.machine import control_groups

_NO_LIMIT = 1 << 60
"""Bytes. Larger limits mean no limit: control groups of version 1 report a number near 2^63."""


def sizes() -> tuple[int, int]:
    """Return the available and the total bytes of memory, without regard to limits of control groups.

    Raises OSError or KeyError if the system does not report them.
    """
    found = dict(re.findall(r"^(\w+):\s+(\d+) kB$", Path("/proc/meminfo").read_text(), re.MULTILINE))
    return int(found["MemAvailable"]) << 10, int(found["MemTotal"]) << 10


def group_limit() -> int | None:
    """Return the bytes that this process's control groups allow; None without a limit."""
    return min((limit for limit, _ in _limits()), default=None)


def available() -> int:
    """Return the bytes that may be taken, with pages of mapped files; 0 if the system reports none."""
    try:
        free, _ = sizes()
    except (OSError, KeyError):
        return 0
    return min([free, *(max(0, limit - used) for limit, used in _limits())])


def most() -> int:
    """Return the bytes that this process could have on an idle machine; 0 if the system reports none."""
    try:
        _, total = sizes()
    except (OSError, KeyError):
        return 0
    return min(total, group_limit() or total)


def swap() -> int:
    """Return the bytes of swap space; 0 if the system reports none."""
    try:
        match = re.search(r"^SwapTotal:\s+(\d+) kB$", Path("/proc/meminfo").read_text(), re.MULTILINE)
    except OSError:
        return 0
    return int(match[1]) << 10 if match else 0


def _limits() -> Iterator[tuple[int, int]]:
    """Yield the limit and the use, in bytes, of every control group of this process that has a limit.

    Pages of files do not count as used, because the system drops them when the memory is needed.
    """
    for folder in control_groups.folders("memory"):
        limits = (_number(folder, name) for name in ("memory.max", "memory.high", "memory.limit_in_bytes"))
        limit = min((each for each in limits if each is not None), default=_NO_LIMIT)
        if limit >= _NO_LIMIT:
            continue
        used = _number(folder, "memory.current", "memory.usage_in_bytes") or 0
        yield limit, max(0, used - _file_pages(folder))


def _file_pages(folder: Path) -> int:
    """Return the bytes of pages of files that count as used in a control group."""
    try:
        text = (folder / "memory.stat").read_text()
    except OSError:
        return 0
    found = dict(re.findall(r"^(\w+) (\d+)$", text, re.MULTILINE))
    prefix = "total_" if "total_active_file" in found else ""  # version 1: the sum with inner groups
    return sum(int(found.get(f"{prefix}{kind}_file", 0)) for kind in ("active", "inactive"))


def _number(folder: Path, *names: str) -> int | None:
    for name in names:
        try:
            return int((folder / name).read_text())
        except (OSError, ValueError):  # ValueError: "max"
            continue
    return None

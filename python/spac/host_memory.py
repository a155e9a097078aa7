"""How much of the machine's memory may be taken."""

from __future__ import annotations

import re
from pathlib import Path


def sizes() -> tuple[int, int]:
    """Bytes that are available, and that there are; a control group's limit does not count. Raises OSError
    where the system does not tell."""
    found = dict(re.findall(r"^(\w+):\s+(\d+) kB$", Path("/proc/meminfo").read_text(), re.MULTILINE))
    return int(found["MemAvailable"]) << 10, int(found["MemTotal"]) << 10


def group_limit() -> int | None:
    """Bytes that this process's control group allows; None for no limit."""
    return _of_group("memory.max")


def available() -> int:
    """Bytes that may be taken, pages of mapped files among them; 0 where the system does not tell."""
    try:
        free, _ = sizes()
    except (OSError, KeyError):
        return 0
    limit, used = group_limit(), _of_group("memory.current")
    return free if limit is None else max(0, min(free, limit - (used or 0)))


def _of_group(name: str) -> int | None:
    try:
        return int(Path("/sys/fs/cgroup", name).read_text())
    except (OSError, ValueError):  # ValueError: "max"
        return None

"""How much of the machine's memory may be taken."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

_GROUPS = Path("/sys/fs/cgroup")
_OWN = Path("/proc/self/cgroup")
_NO_LIMIT = 1 << 60  # version 1 says a number near 2^63


def sizes() -> tuple[int, int]:
    """Bytes that are available, and that there are; a control group's limit does not count. Raises OSError
    where the system does not tell."""
    found = dict(re.findall(r"^(\w+):\s+(\d+) kB$", Path("/proc/meminfo").read_text(), re.MULTILINE))
    return int(found["MemAvailable"]) << 10, int(found["MemTotal"]) << 10


def group_limit() -> int | None:
    """Bytes that this process's control groups allow; None for no limit."""
    return min((limit for limit, _ in _limits()), default=None)


def available() -> int:
    """Bytes that may be taken, pages of mapped files among them; 0 where the system does not tell."""
    try:
        free, _ = sizes()
    except (OSError, KeyError):
        return 0
    return min([free, *(max(0, limit - used) for limit, used in _limits())])


def most() -> int:
    """Bytes that this process could have if nobody else had any; 0 where the system does not tell."""
    try:
        _, total = sizes()
    except (OSError, KeyError):
        return 0
    return min(total, group_limit() or total)


def swap() -> int:
    """Bytes of swap space; 0 where the system does not tell."""
    try:
        match = re.search(r"^SwapTotal:\s+(\d+) kB$", Path("/proc/meminfo").read_text(), re.MULTILINE)
    except OSError:
        return 0
    return int(match[1]) << 10 if match else 0


def _limits() -> Iterator[tuple[int, int]]:
    """Limit and use of every control group around this process that has a limit; pages of files, which go
    when others need the memory, do not count as used."""
    for folder in _folders():
        limits = (_number(folder, name) for name in ("memory.max", "memory.high", "memory.limit_in_bytes"))
        limit = min((each for each in limits if each is not None), default=_NO_LIMIT)
        if limit >= _NO_LIMIT:
            continue
        used = _number(folder, "memory.current", "memory.usage_in_bytes") or 0
        yield limit, max(0, used - _file_pages(folder))


def _folders() -> Iterator[Path]:
    """The process's control groups that count memory, the innermost first, of version 2 and 1. A container
    may show its own as the outermost."""
    try:
        lines = _OWN.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, group = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        root = _GROUPS / "memory" if controllers else _GROUPS
        folder = root / group.lstrip("/")
        yield folder
        yield from (parent for parent in folder.parents if parent.is_relative_to(root))


def _file_pages(folder: Path) -> int:
    try:
        text = (folder / "memory.stat").read_text()
    except OSError:
        return 0
    found = dict(re.findall(r"^(\w+) (\d+)$", text, re.MULTILINE))
    prefix = "total_" if "total_active_file" in found else ""  # version 1: with the groups inside
    return sum(int(found.get(f"{prefix}{kind}_file", 0)) for kind in ("active", "inactive"))


def _number(folder: Path, *names: str) -> int | None:
    for name in names:
        try:
            return int((folder / name).read_text())
        except (OSError, ValueError):  # ValueError: "max"
            continue
    return None

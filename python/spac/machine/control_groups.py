"""The control groups that this process is in."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

GROUPS = Path("/sys/fs/cgroup")
"""The folder in which the system shows the control groups."""
OWN = Path("/proc/self/cgroup")
"""The system's list of the groups of this process."""


def folders(controller: str) -> Iterator[Path]:
    """Yield the folders of this process's groups that have a controller, the innermost first.

    They are of version 2 or 1. A container may show its own group as the outermost one.
    """
    try:
        lines = OWN.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, group = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        root = GROUPS / controller if controllers else GROUPS
        folder = root / group.lstrip("/")
        yield folder
        yield from (parent for parent in folder.parents if parent.is_relative_to(root))

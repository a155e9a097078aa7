"""Read the pretend runtime's counts, as differences between moments of one process."""

from __future__ import annotations

import ctypes
import json
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from tools.cuda_host.build import NAME

FIELDS = ("calls", "bytes")


def report() -> dict[str, Any]:
    """Return everything since the library was loaded: calls, kernels, misuse (pretend/counts.h)."""
    function = ctypes.CDLL(NAME).pretend_cuda_report  # loaded with spac's library: found by its SONAME
    function.restype = ctypes.c_char_p
    found: dict[str, Any] = json.loads(function())
    return found


@dataclass(frozen=True)
class Counts:
    """Calls and bytes by (kind, stream), and launches of kernels by name."""

    cells: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    kernels: Counter[str] = field(default_factory=Counter)

    @classmethod
    def now(cls) -> Counts:
        found = report()
        cells: dict[tuple[str, int], tuple[int, int]] = {}
        for entry in found["calls"]:
            key = entry["kind"], entry["stream"]
            before = cells.get(key, (0, 0))
            cells[key] = tuple(a + entry[name] for a, name in zip(before, FIELDS, strict=True))
        return cls(cells, Counter(found["kernels"]))

    def __sub__(self, other: Counts) -> Counts:
        cells = {}
        for key, now in self.cells.items():
            before = other.cells.get(key, (0, 0))
            difference = tuple(a - b for a, b in zip(now, before, strict=True))
            if any(difference):
                cells[key] = difference
        return Counts(cells, self.kernels - other.kernels)  # type: ignore[arg-type]

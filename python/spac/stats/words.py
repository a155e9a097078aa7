"""Numbers and words of statistics as text, for tables, the report and messages."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any


def end(reason: str, n_tokens: int, context: int) -> str:
    """Return how a text ended, in words; "" if it is unknown.

    `reason` is `RunStats.reason`. `n_tokens` is the number of tokens in the prompt and the answer.
    """
    if reason == "length":
        return "stopped at a full context" if 0 < context <= n_tokens + 1 else "stopped at --max-tokens"
    return {"stop": "stopped by the model", "cancelled": "cancelled"}.get(reason, reason)


def number(value: float | None) -> str:
    """Return a number with three digits, or in whole from 100 on; "–" for None."""
    if value is None:
        return "–"
    return f"{value:.3g}" if abs(value) < 100 else f"{value:,.0f}"


def ratio(part: float, whole: float) -> float | None:
    """Return part / whole, or None if the whole is 0."""
    return part / whole if whole else None


def percent(value: float | None) -> str:
    """Return a share in percent; "–" for None."""
    return "–" if value is None else f"{value:.0%}" if value in (0, 1) else f"{value:.1%}"


def seconds(value: float | None) -> str:
    """Return a time in s, ms or µs; "–" for None."""
    if value is None:
        return "–"
    for scale, unit in ((1, "s"), (1e3, "ms"), (1e6, "µs")):
        if abs(value) * scale >= 1:
            return f"{number(value * scale)} {unit}"
    return f"{number(value * 1e6)} µs" if value else "0 s"


def size(value: float | None) -> str:
    """Return a number of bytes, with units in powers of 1000; "–" for None."""
    if value is None:
        return "–"
    for unit in ("B", "KB", "MB", "GB"):
        if abs(value) < 1000:
            return f"{number(value)} {unit}"
        value /= 1000
    return f"{number(value)} TB"


def columns(cells: Sequence[Sequence[str]], left: Collection[int] = (0,)) -> Iterator[str]:
    """Yield the rows of a table as lines of columns, of which those in `left` are aligned to the left."""
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        aligned = (
            cell.ljust(width) if at in left else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        yield "  ".join(aligned).rstrip()


def counted(n: int, noun: str) -> str:
    """Return a number with its noun, in the plural unless the number is 1."""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def side(is_simulated: bool) -> str:
    """Return the word for the device beside the CPU."""
    return "simulated device" if is_simulated else "GPU"


def share(stats: Mapping[str, Any]) -> str:
    """Return what each side computed of the experts. `stats` has the fields of `RunStats` by name."""
    device = side(bool(stats.get("device_is_simulated")))
    return f"{device} {percent(stats['gpu_share'])}, CPU {percent(stats['cpu_share'])}"

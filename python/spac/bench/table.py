"""The table for the user, and its recommendation."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from spac.bench.figures import Row, Spread, best, rivals, widest
from spac.stats.words import counted, number, percent, seconds

_HEAD = (
    "setting", "tokens/s", "[range]", "ratio", "first token", "accepted", "tokens/step", "hit rate",
    "MB/step", "slots",
)  # fmt: skip


def lines(all_rows: Sequence[Row], rounds: str) -> Iterator[str]:
    """Yield the lines of the table and of its conclusions; `rounds` describes the rounds in words."""
    winner = best(all_rows)
    cells = [_HEAD, *(_cells(row) for row in all_rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    marks = ["  ", *("* " if row is winner else "  " for row in all_rows)]
    for mark, row in zip(marks, cells, strict=True):
        first, *others = (
            cell.ljust(width) if at in (0, 2) else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        yield (mark + "  ".join([first, *others])).rstrip()
    yield ""
    yield f"tokens/s: median [least–most] of {rounds}"
    if any(row.ratio is not None for row in all_rows):
        yield "ratio: to the CPU alone, with the same drafts; the median of the rounds' ratios"
    if (wide := widest(all_rows)) is not None:
        yield (
            f"warning: the rounds of '{wide.candidate.label}' differ by up to {number(wide.spread)} times: "
            "stop other programs, and run again"
        )
    if winner is not None:
        yield _recommendation(all_rows, winner)


def _recommendation(all_rows: Sequence[Row], winner: Row) -> str:
    options = shlex.join(winner.candidate.arguments) or "no options"
    n = rivals(all_rows, winner)
    doubt = f"; the range of {counted(n, 'other')} reaches into its own" if n else ""
    return f"* fastest here, for spac run: {options}{doubt}"


def _cells(row: Row) -> tuple[str, ...]:
    speed = row.tokens_per_second
    return (
        row.candidate.label,
        number(_median(speed)),
        _range(speed),
        "1" if row.candidate.is_baseline else number(_median(row.ratio)),
        seconds(_median(row.time_to_first_token_s)),
        percent(row.acceptance),
        number(row.tokens_per_step),
        percent(row.hit_rate),
        number(None if row.bytes_moved_per_step is None else row.bytes_moved_per_step / 1e6),
        "–" if row.slots is None else f"{row.slots} of {row.n_experts}",
    )


def _median(spread: Spread | None) -> float | None:
    return None if spread is None else spread.median


def _range(spread: Spread | None) -> str:
    return "" if spread is None else f"[{number(spread.least)}–{number(spread.most)}]"

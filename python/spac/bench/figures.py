"""The figures of a measurement: a row for each candidate, the best row, all of it as a table and as JSON."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any, Self

from spac.bench.candidates import Candidate
from spac.bench.measure import Sample
from spac.stats.words import columns, counted, number, percent, ratio, seconds

SCHEMA = 1
WIDE = 1.5
"""The limit from which a row's range is wide.

It applies to the speed of the fastest round over that of the slowest one, and to the ratios alike.
"""


@dataclass(frozen=True)
class Spread:
    """The median over the rounds, and the smallest and the largest value."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float | None]) -> Self | None:
        """Return the spread of the values, or None where no round has one."""
        known = [value for value in values if value is not None]
        return cls(median(known), min(known), max(known)) if known else None

    @property
    def times(self) -> float:
        """The ratio of the largest value to the smallest one; 1 if the smallest one is 0."""
        return self.most / self.least if self.least else 1.0


@dataclass(frozen=True)
class Row:
    """The figures of a candidate; None marks one that it cannot have. Shares are of all its runs together."""

    candidate: Candidate
    tokens_per_second: Spread | None
    ratio: Spread | None  # speed over the baseline's with the same drafts, in each round
    time_to_first_token_s: Spread | None
    acceptance: float | None
    tokens_per_step: float | None
    hit_rate: float | None  # share of activations
    bytes_moved_per_step: float | None
    slots: int | None
    n_experts: int

    @property
    def spread(self) -> float:
        """The largest value over the smallest one, of its speeds or of its ratios: the larger of the two."""
        return max(each.times if each else 1.0 for each in (self.tokens_per_second, self.ratio))


Samples = Mapping[Candidate, Sequence[Sample]]


def rows(samples: Samples) -> list[Row]:
    """Return a row for every candidate that has a sample."""
    baselines = {candidate.length: each for candidate, each in samples.items() if candidate.is_baseline}
    return [_row(each, own, baselines.get(each.length, ())) for each, own in samples.items() if own]


def _row(candidate: Candidate, samples: Sequence[Sample], baseline: Sequence[Sample]) -> Row:
    runs = [run for sample in samples for run in sample.runs]
    steps = sum(run.steps for run in runs)
    moved = sum(sum(run.bytes_moved.values()) for run in runs)
    n_experts = runs[0].n_experts
    return Row(
        candidate=candidate,
        tokens_per_second=Spread.of([sample.tokens_per_second for sample in samples]),
        ratio=None if candidate.is_baseline else Spread.of(_ratios(samples, baseline)),
        time_to_first_token_s=Spread.of([sample.first_token_s for sample in samples]),
        acceptance=ratio(sum(run.accepted_tokens for run in runs), sum(run.drafted_tokens for run in runs)),
        tokens_per_step=ratio(sum((run.tokens_per_step or 0) * run.steps for run in runs), steps),
        hit_rate=ratio(
            sum((run.hit_rate or 0) * run.activations for run in runs), sum(run.activations for run in runs)
        ),
        bytes_moved_per_step=ratio(moved, steps) if n_experts else None,
        slots=runs[0].slots if n_experts else None,
        n_experts=n_experts,
    )


def _ratios(samples: Sequence[Sample], baseline: Sequence[Sample]) -> list[float | None]:
    theirs = {sample.round: sample.tokens_per_second for sample in baseline}
    pairs = [(sample.tokens_per_second, theirs.get(sample.round)) for sample in samples]
    return [own / other if own and other else None for own, other in pairs]


def best(all_rows: Sequence[Row]) -> Row | None:
    """Return the row with the highest median speed, or None when nothing was generated."""
    return max(
        (row for row in all_rows if row.tokens_per_second),
        key=lambda row: row.tokens_per_second.median if row.tokens_per_second else 0.0,
        default=None,
    )


def rivals(all_rows: Sequence[Row], winner: Row) -> int:
    """Return the number of other rows whose range of speed reaches into the winner's.

    More rounds would separate them from the winner.
    """
    low = winner.tokens_per_second.least if winner.tokens_per_second else 0.0
    return sum(
        row is not winner and row.tokens_per_second is not None and row.tokens_per_second.most >= low
        for row in all_rows
    )


def widest(all_rows: Sequence[Row]) -> Row | None:
    """Return the row with the widest range if that is wider than WIDE, else None."""
    row = max(all_rows, key=lambda each: each.spread, default=None)
    return row if row is not None and row.spread > WIDE else None


def as_json(samples: Samples, about: Mapping[str, Any]) -> dict[str, Any]:
    """Return everything that was measured, for `json.dumps`; `about` comes first."""
    table = rows(samples)
    winner = best(table)
    return {
        "schema": SCHEMA,
        **about,
        "recommended": winner.candidate.arguments if winner is not None else None,
        "settings": [_setting(row, row is winner, samples[row.candidate]) for row in table],
    }


def _setting(row: Row, is_best: bool, samples: Sequence[Sample]) -> dict[str, Any]:
    figures = asdict(row)
    del figures["candidate"]
    return {
        "setting": row.candidate.label,
        "options": shlex.join(row.candidate.arguments),
        "is_baseline": row.candidate.is_baseline,
        "is_best": is_best,
        "is_wide": row.spread > WIDE,
        **figures,
        "rounds": [
            {
                "round": sample.round,
                "tokens_per_second": sample.tokens_per_second,
                "runs": [
                    {**asdict(run), "text": text} for run, text in zip(sample.runs, sample.texts, strict=True)
                ],
            }
            for sample in samples
        ],
    }


_HEAD = (
    "setting", "tokens/s", "[range]", "ratio", "first token", "accepted", "tokens/step", "hit rate",
    "MB/step", "slots",
)  # fmt: skip


def lines(all_rows: Sequence[Row], rounds: str) -> Iterator[str]:
    """Yield the lines of the table and of its conclusions; `rounds` describes the rounds in words."""
    winner = best(all_rows)
    marks = ["  ", *("* " if row is winner else "  " for row in all_rows)]
    table = columns([_HEAD, *map(_cells, all_rows)], left=(0, 2))
    yield from (mark + line for mark, line in zip(marks, table, strict=True))
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

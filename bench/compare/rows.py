"""Make the table's rows from the cells' results, each with the ideal that the bandwidths allow."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from bench.compare.breakdown import Breakdown, breakdown_of
from bench.compare.cells import Cell
from bench.compare.job import Result, Run, warm
from bench.compare.roofline import Bandwidths, Weights, ideal_step_s

if TYPE_CHECKING:
    from bench.compare.comparison import Comparison


@dataclass(frozen=True)
class Row:
    """One cell's figures; times in seconds, memory in bytes, speeds in tokens per second."""

    engine: str
    budget: str
    context: int
    n_cpu_moe: int | None
    decode: float  # median of the warm runs
    decode_range: tuple[float, float]  # the slowest and the fastest of the warm runs
    decode_cold: float
    prefill: float
    first_token_s: float
    acceptance: float | None
    tokens_per_step: float | None  # None: a peer does not report what it drafted
    hit_rate: float | None
    bound: float | None  # Belady's rate of hits of distinct experts
    hit_rate_distinct: float | None
    wait_ms: float | None  # the host waits for the device, per step
    vram: int | None
    ram: int
    weights: str  # how spac's experts lay in host memory
    threads: int
    same_text: bool
    ideal: float | None  # tokens per second
    load_s: float
    first_token_cold_s: float
    follow_up_s: float | None  # first token of 200 tokens behind an answer; None: not measured
    breakdown: Breakdown | None
    repeated: float | None = None  # `decode` of the same cell, run again at the end
    kind: str = "spac"  # or "llama.cpp", "peer"


def _median(values: Sequence[float]) -> float:
    return statistics.median(values) if values else 0.0


def row_of(
    cell: Cell,
    result: Result,
    n_cpu_moe: int | None,
    ideal: float | None,
    reference: list[list[int]] | None,
    again: Result | None = None,
) -> Row:
    """Compute a row.

    `reference`: the texts that the first engine wrote; `again`: the result of the same cell at the end.
    """
    runs, measured = result.each, warm(result.each)
    drafted = sum(run.drafted for run in measured)
    figures, parts = [run.figures for run in measured if run.figures], breakdown_of(measured)
    steps = sum(run.steps for run in measured)
    speeds = [run.decode_speed for run in measured]
    return Row(
        engine=cell.engine.name,
        budget=cell.budget if cell.engine.by_budget else "-",
        context=cell.context,
        n_cpu_moe=n_cpu_moe,
        decode=_median(speeds),
        decode_range=(min(speeds, default=0.0), max(speeds, default=0.0)),
        decode_cold=runs[0].decode_speed,
        prefill=_median([run.prefill_speed for run in measured]),
        first_token_s=_median([run.first_token_s for run in measured]),
        acceptance=sum(run.accepted for run in measured) / drafted if drafted else None,
        tokens_per_step=sum(run.n_tokens for run in measured) / steps if steps else None,
        hit_rate=_mean_of(figures, "hit_rate"),
        bound=result.bound,
        hit_rate_distinct=_mean_of(figures, "hit_rate_distinct"),
        wait_ms=parts.waits if parts else None,
        vram=result.peak_vram,
        ram=result.peak_ram,
        weights=_weights(result),
        threads=result.threads,
        same_text=reference is None or [run.tokens for run in runs] == reference,
        ideal=ideal,
        load_s=result.load_s,
        first_token_cold_s=runs[0].first_token_s,
        follow_up_s=_median(result.follow_ups_s) if result.follow_ups_s else None,
        breakdown=parts,
        repeated=_median([run.decode_speed for run in warm(again.each)]) if again else None,
        kind=cell.engine.kind,
    )


def _weights(result: Result) -> str:
    """Describe how spac's experts lay in host memory, and how much of it was pinned where somebody
    counted."""
    how = "paged" if result.paged else result.host_memory
    return (
        f"{how}, {gigabytes(result.pinned_bytes)} pinned" if how and result.pinned_bytes is not None else how
    )


def _mean_of(figures: Sequence[Mapping[str, Any]], name: str) -> float | None:
    values = [f[name] for f in figures if f.get(name) is not None]
    return statistics.fmean(values) if values else None


@dataclass(frozen=True)
class Demand:
    """The mean demand of warm steps: distinct experts used, and how many of them spac had resident."""

    distinct: float
    resident: float

    @classmethod
    def of(cls, runs: list[Run]) -> Demand | None:
        """Return the mean demand, None without spac's counters."""
        counted = [run for run in warm(runs) if run.figures.get("distinct")]
        steps = sum(run.steps for run in counted)
        if not steps:
            return None
        names = ("distinct", "distinct_hit")
        return cls(*(sum(run.figures[name] for run in counted) / steps for name in names))


def ideal_speed(
    runs: list[Run],
    demand: Demand,
    resident: float,
    bandwidths: Bandwidths,
    target: Weights,
    draft: Weights | None,
) -> float:
    """Return the tokens per second that the measured bandwidths allow, with `resident` of the demand on the
    device."""
    measured = warm(runs)
    steps = max(1, sum(run.steps for run in measured))
    drafted = sum(run.drafted for run in measured) / steps
    tokens = sum(run.n_tokens for run in measured) / steps
    step_s = ideal_step_s(bandwidths, target, resident, demand.distinct - resident, draft, drafted)
    return tokens / step_s


def gigabytes(value: int | None) -> str:
    """Return bytes as text."""
    return "-" if value is None else f"{value / 1e9:.2f} GB"


def rows_of(comparison: Comparison, bandwidths: Bandwidths | None) -> list[Row]:
    """Return the table's rows, with the ideal that the bandwidths allow."""
    texts: dict[int, list[list[int]]] = {}  # by context: the texts of the first engine
    found = []
    for cell in comparison.grid:
        result = comparison.results.get(cell.key)
        if result is None:
            continue
        is_peer = cell.engine.kind == "peer"
        if not is_peer:
            texts.setdefault(cell.context, [run.tokens for run in result.each])
        ideal = None if bandwidths is None or is_peer else _ideal(comparison, cell, result, bandwidths)
        n_cpu_moe, again = comparison.n_cpu_moe.get(cell.key), comparison.again.get(cell.key)
        text = texts.get(cell.context)
        row = row_of(cell, result, n_cpu_moe, ideal, None if is_peer else text, again)
        if is_peer and text is not None:
            row = replace(row, same_text=_is_same(comparison, result, text))
        found.append(row)
    return found


def _is_same(comparison: Comparison, result: Result, tokens: list[list[int]]) -> bool:
    """Return True if a peer wrote the text of these tokens. Servers differ in blanks at its ends."""
    expected = [comparison.text_of(each).strip() for each in tokens]
    return [run.text.strip() for run in result.each] == expected


def _ideal(comparison: Comparison, cell: Cell, result: Result, bandwidths: Bandwidths) -> float | None:
    """Return the ideal speed, None where nobody counted the demand."""
    demand = _demand(comparison, cell)
    if demand is None:
        return None
    resident = demand.resident
    if cell.engine.kind != "spac":
        # Whole layers of experts are resident; without a GPU no layer is.
        first = len(comparison.sizes) if not comparison.on_gpu else comparison.n_cpu_moe.get(cell.key) or 0
        with_experts = [i for i, size in enumerate(comparison.sizes) if size]
        resident = demand.distinct * sum(i >= first for i in with_experts) / len(with_experts)
    draft = comparison.draft if cell.engine.speculates else None
    return ideal_speed(result.each, demand, resident, bandwidths, comparison.target, draft)


def _demand(comparison: Comparison, cell: Cell) -> Demand | None:
    """Return the cell's own demand, or that of spac on the same text in steps of the same kind."""
    own = Demand.of(comparison.results[cell.key].each)
    if own is not None or cell.engine.draft_length is not None:
        return own
    for other in comparison.grid:
        same = other.context == cell.context and other.engine.speculates == cell.engine.speculates
        if same and other.engine.governor is None and other.key in comparison.results:
            found = Demand.of(comparison.results[other.key].each)
            if found is not None:
                return found
    return None

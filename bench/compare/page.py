"""Write the results as a Markdown page."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.compare.breakdown import Breakdown, breakdown_of, time_table, use_table
from bench.compare.cells import Cell
from bench.compare.job import Result, Run, warm
from bench.compare.roofline import Bandwidths, Weights, ideal_step_s


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
    return f"{how}, {_gb(result.pinned_bytes)} pinned" if how and result.pinned_bytes is not None else how


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


def table(rows: list[Row]) -> str:
    """Return Markdown with a table per context and budget. Rows without a budget are in each."""
    return "\n\n".join(
        f"### {_where(budget, context)}\n\n" + _one(mine) for context, budget, mine in _groups(rows)
    )


def breakdowns(rows: list[Row], bandwidths: Bandwidths | None, target: Weights) -> str:
    """Return Markdown per context and budget: where the steps' time goes."""
    parts = []
    for context, budget, mine in _groups([row for row in rows if row.breakdown]):
        times = [(row.engine, row.breakdown) for row in mine if row.breakdown]
        used = use_table(times, bandwidths, target)
        title = f"### Where a step's time goes: {_where(budget, context)}"
        parts += [part for part in (title, time_table(times), used) if part]
    if not parts:
        return ""
    return "\n\n".join([*parts, _EXPLAINED])


def _groups(rows: list[Row]) -> Iterator[tuple[int, str, list[Row]]]:
    """Yield rows by context and budget. Rows without a budget are in each group, or alone where all rows are
    such."""
    budgets = dict.fromkeys(row.budget for row in rows if row.budget != "-") or ["-"]
    for context in dict.fromkeys(row.context for row in rows):
        for budget in budgets:
            mine = [r for r in rows if r.context == context and r.budget in (budget, "-")]
            if any(r.budget == budget for r in mine):
                yield context, budget, mine


def _where(budget: str, context: int) -> str:
    """Return a group's title."""
    share = "" if budget == "-" else f"{budget} of the experts, "
    return f"{share}prompts of {context} tokens"


_EXPLAINED = (
    "Waits: the host waits for a layer's ids and input, and the device computes what is dense. Queueing: "
    "calls that queue launches, copies and joins. Dense, host: what is left of verification; all of it, for "
    "llama.cpp. Unused: uploads that were evicted again without a use."
)
_HEAD = (
    "engine", "decode tok/s", "range", "cold", "prefill tok/s", "first token", "cold", "follow-up",
    "acceptance", "tokens/step", "hits", "distinct", "Belady", "waits/step", "VRAM", "RAM", "weights",
    "ideal tok/s", "reached", "text",
)  # fmt: skip


def _one(rows: list[Row]) -> str:
    lines = ["| " + " | ".join(_HEAD) + " |", "| --- |" + " ---: |" * (len(_HEAD) - 1)]
    for row in sorted(rows, key=lambda r: -r.decode):
        tuned = row.n_cpu_moe is not None and "--n-cpu-moe" in row.engine
        name = f"{row.engine} (N = {row.n_cpu_moe})" if tuned else row.engine
        cells = (
            name, f"{row.decode:.1f}", "–".join(f"{each:.1f}" for each in row.decode_range),
            f"{row.decode_cold:.1f}", f"{row.prefill:.0f}",
            f"{row.first_token_s * 1e3:.0f} ms", f"{row.first_token_cold_s * 1e3:.0f} ms",
            "-" if row.follow_up_s is None else f"{row.follow_up_s * 1e3:.0f} ms",
            _percent(row.acceptance), "-" if row.tokens_per_step is None else f"{row.tokens_per_step:.2f}",
            _percent(row.hit_rate),
            _percent(row.hit_rate_distinct), _percent(row.bound),
            "-" if row.wait_ms is None else f"{row.wait_ms:.2f} ms", _gb(row.vram), _gb(row.ram),
            row.weights or "-",
            "-" if row.ideal is None else f"{row.ideal:.0f}",
            _percent(row.decode / row.ideal if row.ideal else None), "same" if row.same_text else "differs",
        )  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"


def _gb(value: int | None) -> str:
    return "-" if value is None else f"{value / 1e9:.2f} GB"


def verdict(rows: list[Row]) -> list[str]:
    """Return one line for each budget and context, with spac's best against llama.cpp's and each peer. The
    last line names engines that wrote another text."""
    lines = []
    for context, budget, mine in _groups(rows):
        ours = [r for r in mine if r.kind == "spac"]
        theirs = [r for r in mine if r.kind != "spac"]
        stock = [r for r in theirs if r.kind == "llama.cpp"]
        drafting = [r for r in stock if ", draft" in r.engine]
        peers = [("peer", [r]) for r in theirs if r.kind == "peer"]
        if not ours or not theirs:
            continue
        best = max(ours, key=lambda r: r.decode)
        line = f"{budget}, {context} tokens: {best.engine} {best.decode:.1f} tok/s"
        for what, group in (("best llama.cpp", stock), ("best with a draft", drafting), *peers):
            if group:
                other = max(group, key=lambda r: r.decode)
                line += f"; {what} ({other.engine}) {other.decode:.1f}, {best.decode / other.decode:.2f} ×"
        first, fastest = min(r.first_token_s for r in ours), min(r.first_token_s for r in theirs)
        line += f"; first token {first * 1e3:.0f} ms, theirs {fastest * 1e3:.0f} ms"
        later = [[r.follow_up_s for r in side if r.follow_up_s is not None] for side in (ours, theirs)]
        if all(later):
            line += f"; of a follow-up {min(later[0]) * 1e3:.0f} ms, theirs {min(later[1]) * 1e3:.0f} ms"
        lines.append(line)
    others = [f"{r.engine} at {r.budget}, {r.context}" for r in rows if not r.same_text]
    lines.append(f"Texts other than the first engine's: {'; '.join(others) or 'none'}.")
    return lines


def repeats(rows: list[Row]) -> list[str]:
    """Return the results of the repeated cells, which show how far apart two equal cells are."""
    lines = [
        f"{row.engine} {row.decode:.1f} → {row.repeated:.1f} tok/s ({row.repeated / row.decode - 1:+.1%})"
        for row in rows
        if row.repeated and row.decode
    ]
    return ["Repeated at the end: " + "; ".join(lines) + "."] if lines else []

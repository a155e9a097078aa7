"""Show where a step's time goes, and what link and memory carry meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from bench.compare.job import Run
from bench.compare.roofline import Bandwidths, Weights


@dataclass(frozen=True)
class Breakdown:
    """An engine's warm steps, per step. Times in ms add up to `step`. None means that nobody measured it."""

    step: float
    draft: float | None = None
    dense: float | None = None  # the rest of verification: the host's part of dense layers, spac's own work
    queue: float | None = None  # calls that queue launches, copies and joins
    waits: float | None = None  # the host waits for the device, which computes the dense part meanwhile
    experts: float | None = None  # computed on the CPU
    scheduler: float | None = None
    rest: float = 0.0  # sampling, accepting, the governor, Python
    counts: dict[str, float] = field(default_factory=dict)  # figures that are not times, by name


def breakdown_of(runs: Sequence[Run]) -> Breakdown | None:
    """Return the breakdown of runs that report where their time went, None for others."""
    mine = [run for run in runs if run.figures.get("verify_s") is not None]
    steps = sum(run.steps for run in mine)
    if not steps:
        return None

    def sum_of(*path: str) -> float | None:
        """Return the sum per step, None where a run does not have it."""
        values = []
        for run in mine:
            value: Any = run.figures
            for name in path:
                value = value.get(name) if value else None
            values.append(value)
        return None if None in values else sum(values) / steps

    step = sum(run.decode_s for run in mine) / steps
    names = ("draft", "verify", "host_wait", "host_compute", "scheduler", "queue")
    draft, verify, wait, experts, scheduler, queue = (sum_of(f"{name}_s") for name in names)
    known = sum(value for value in (draft, verify, scheduler) if value is not None)
    dense = None if verify is None else max(0.0, verify - sum(v or 0.0 for v in (wait, experts, queue)))
    megabytes = {name: sum_of("bytes_moved", name) for name in ("uploads", "downloads", "joins")}
    counts = {
        "tokens": sum(run.n_tokens for run in mine) / steps,
        "drafted": sum(run.drafted for run in mine) / steps,
        "waits": sum_of("host_waits"),
        "uploads": sum_of("uploads"),
        "copying": None if (copying := sum_of("upload_s")) is None else copying / step,
        "wasted": sum_of("uploads_wasted"),
        "distinct": sum_of("distinct"),
        "resident": sum_of("distinct_hit"),
        "link": None if None in megabytes.values() else sum(v or 0.0 for v in megabytes.values()) / step,
    }
    return Breakdown(
        step=step * 1e3, draft=_ms(draft), dense=_ms(dense), queue=_ms(queue), waits=_ms(wait),
        experts=_ms(experts), scheduler=_ms(scheduler), rest=max(0.0, step - known) * 1e3,
        counts={name: value for name, value in counts.items() if value is not None},
    )  # fmt: skip


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1e3


def cpu_rate(parts: Breakdown, target: Weights) -> float | None:
    """Return the bytes per second at which the CPU read the experts that were not resident."""
    missed = parts.counts.get("distinct", 0.0) - parts.counts.get("resident", 0.0)
    return missed * target.expert / (parts.experts / 1e3) if parts.experts and missed > 0 else None


NAMES = {
    "step": "step", "draft": "draft", "waits": "waits", "experts": "experts on the CPU", "queue": "queueing",
    "dense": "dense, host", "scheduler": "scheduler", "rest": "rest",
}  # fmt: skip


def time_table(rows: Sequence[tuple[str, Breakdown]]) -> str:
    """Return Markdown with a line per engine: ms per step."""
    lines = ["| ms per step | " + " | ".join(NAMES.values()) + " |", "| --- |" + " ---: |" * len(NAMES)]
    for name, parts in rows:
        values = (getattr(parts, each) for each in NAMES)
        lines.append(f"| {name} | " + " | ".join("" if v is None else f"{v:.2f}" for v in values) + " |")
    return "\n".join(lines)


def use_table(rows: Sequence[tuple[str, Breakdown]], bandwidths: Bandwidths | None, target: Weights) -> str:
    """Return Markdown: what the link and the CPU's memory carried, per engine that reports it."""
    head = (
        "per step", "drafted", "waits", "uploads", "unused", "copies under way", "link GB/s", "of it",
        "CPU through experts, GB/s", "of DRAM",
    )  # fmt: skip
    lines = ["| " + " | ".join(head) + " |", "| --- |" + " ---: |" * (len(head) - 1)]
    for name, parts in rows:
        c, rate = parts.counts, cpu_rate(parts, target)
        if "uploads" not in c:
            continue
        link = bandwidths.link if bandwidths else None
        cells = (
            name, f"{c['drafted']:.1f}", f"{c.get('waits', 0):.1f}", f"{c['uploads']:.1f}",
            f"{c.get('wasted', 0):.1f}", f"{c.get('copying', 0):.0%}", f"{c.get('link', 0) / 1e9:.2f}",
            f"{c.get('link', 0) / link:.0%}" if link else "", f"{rate / 1e9:.1f}" if rate else "",
            f"{rate / bandwidths.dram:.0%}" if rate and bandwidths else "",
        )  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) if len(lines) > 2 else ""

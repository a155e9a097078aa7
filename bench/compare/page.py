"""Write the results as a Markdown page."""

from __future__ import annotations

from collections.abc import Iterator

from bench.compare.breakdown import time_table, use_table
from bench.compare.roofline import Bandwidths, Weights
from bench.compare.rows import Row, gigabytes


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
    "engine", "decode tokens/s", "range", "cold", "prefill tokens/s", "first token", "cold", "follow-up",
    "acceptance", "tokens/step", "hits", "distinct", "Belady", "waits/step", "VRAM", "RAM", "weights",
    "ideal tokens/s", "reached", "text",
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
            "-" if row.wait_ms is None else f"{row.wait_ms:.2f} ms", gigabytes(row.vram), gigabytes(row.ram),
            row.weights or "-",
            "-" if row.ideal is None else f"{row.ideal:.0f}",
            _percent(row.decode / row.ideal if row.ideal else None), "same" if row.same_text else "differs",
        )  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"


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
        line = f"{budget}, {context} tokens: {best.engine} {best.decode:.1f} tokens/s"
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
        f"{row.engine} {row.decode:.1f} → {row.repeated:.1f} tokens/s ({row.repeated / row.decode - 1:+.1%})"
        for row in rows
        if row.repeated and row.decode
    ]
    return ["Repeated at the end: " + "; ".join(lines) + "."] if lines else []

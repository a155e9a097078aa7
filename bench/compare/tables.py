"""Write the page of the comparison: each cell's figures, and the verdicts."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from bench.compare import likeness
from bench.compare.cells import Cell
from bench.compare.job import Result
from bench.page import publish, spread, table

if TYPE_CHECKING:
    from bench.compare.comparison import Comparison

Row = dict[str, Any]
LISTED = 12  # number of cells that were not run which the page names
HEAD = (
    "engine", "decode tokens/s", "cold", "prefill tokens/s", "first token", "cold", "follow-up", "acceptance",
    "tokens/step", "hits", "distinct", "Belady", "waits ms/step", "VRAM", "RAM", "weights", "text",
)  # fmt: skip
EXPLAINED = (
    "Decode: median of the warm prompts, the slowest and the fastest of them; cold: the first prompt after "
    "loading, which is in no other figure. Weights: how spac's experts lay in host memory."
)


def row_of(
    cell: Cell, result: Result, n_cpu_moe: int | None, same_text: bool, again: Result | None = None
) -> Row:
    """Return a cell's figures; times in seconds, memory in bytes, speeds in tokens per second.

    `same_text`: it wrote the first engine's texts; `again`: the result of the same cell at the end.
    """
    cold, warm = result.each[0], result.warm
    drafted, steps = sum(run.drafted for run in warm), sum(run.steps for run in warm)
    speeds = [run.decode_speed for run in warm]
    waits = [run.figures.get("host_wait_s") for run in warm]
    how, pinned = "paged" if result.paged else result.host_memory, result.pinned_bytes

    def mean(name: str) -> float | None:
        values = [run.figures[name] for run in warm if run.figures.get(name) is not None]
        return statistics.fmean(values) if values else None

    return {
        "engine": cell.engine.name, "kind": cell.engine.kind, "context": cell.context, "n_cpu_moe": n_cpu_moe,
        "budget": cell.budget if cell.engine.by_budget else "-",
        "decode": statistics.median(speeds), "decode_range": (min(speeds), max(speeds)),
        "decode_cold": cold.decode_speed, "prefill": statistics.median(run.prefill_speed for run in warm),
        "first_token_s": statistics.median(run.first_token_s for run in warm),
        "first_token_cold_s": cold.first_token_s, "load_s": result.load_s,
        "follow_up_s": statistics.median(result.follow_ups_s) if result.follow_ups_s else None,
        "acceptance": sum(run.accepted for run in warm) / drafted if drafted else None,
        "tokens_per_step": sum(run.n_tokens for run in warm) / steps if steps else None,
        "hit_rate": mean("hit_rate"), "hit_rate_distinct": mean("hit_rate_distinct"), "bound": result.bound,
        "vram": result.peak_vram, "ram": result.peak_ram, "threads": result.threads, "same_text": same_text,
        "weights": f"{how}, {gigabytes(pinned)} pinned" if how and pinned is not None else how,
        "wait_s": sum(waits) / steps if steps and None not in waits else None,  # for the device, per step
        "repeated": statistics.median(run.decode_speed for run in again.warm) if again else None,
    }  # fmt: skip


def rows_of(comparison: Comparison) -> list[Row]:
    """Return the rows of all cells that have a result."""
    texts: dict[int, list[list[int]]] = {}  # by context: the texts of the first engine
    found = []
    for cell in comparison.grid:
        result = comparison.results.get(cell.key)
        if result is None:
            continue
        if cell.engine.kind == "peer":  # servers differ in blanks at the ends
            wanted = [comparison.text_of(each).strip() for each in texts.get(cell.context, [])]
            same = not wanted or [run.text.strip() for run in result.each] == wanted
        else:
            mine = [run.tokens for run in result.each]
            same = texts.setdefault(cell.context, mine) == mine
        n_cpu_moe, again = comparison.n_cpu_moe.get(cell.key), comparison.again.get(cell.key)
        found.append(row_of(cell, result, n_cpu_moe, same, again))
    return found


def gigabytes(value: float | None) -> str:
    return "-" if value is None else f"{value / 1e9:.2f} GB"


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e3:.0f} ms"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"


def _number(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def groups(rows: list[Row]) -> Iterator[tuple[str, list[Row]]]:
    """Yield titles and rows by context and budget. Rows without a budget are in each group, or alone."""
    budgets = dict.fromkeys(row["budget"] for row in rows if row["budget"] != "-") or ["-"]
    for context in dict.fromkeys(row["context"] for row in rows):
        for budget in budgets:
            mine = [r for r in rows if r["context"] == context and r["budget"] in (budget, "-")]
            if any(r["budget"] == budget for r in mine):
                share = "" if budget == "-" else f"{budget} of the experts, "
                yield f"{share}prompts of {context} tokens", mine


def figures(rows: list[Row]) -> str:
    """Return a table of cells, the fastest first."""
    lines = []
    for row in sorted(rows, key=lambda r: -r["decode"]):
        tuned = row["n_cpu_moe"] is not None and "--n-cpu-moe" in row["engine"]
        lines.append((
            f"{row['engine']} (N = {row['n_cpu_moe']})" if tuned else row["engine"],
            spread([row["decode"], *row["decode_range"]]), _number(row["decode_cold"], 1),
            _number(row["prefill"], 0),
            _ms(row["first_token_s"]), _ms(row["first_token_cold_s"]), _ms(row["follow_up_s"]),
            _percent(row["acceptance"]), _number(row["tokens_per_step"]), _percent(row["hit_rate"]),
            _percent(row["hit_rate_distinct"]), _percent(row["bound"]),
            "-" if row["wait_s"] is None else _number(row["wait_s"] * 1e3),
            gigabytes(row["vram"]), gigabytes(row["ram"]), row["weights"] or "-",
            "same" if row["same_text"] else "differs",
        ))  # fmt: skip
    return table(HEAD, lines)


def verdict(rows: list[Row]) -> list[str]:
    """Return one line for each budget and context, with spac's best against llama.cpp's and each peer. The
    last line names engines that wrote another text."""
    lines = []
    for title, mine in groups(rows):
        ours, theirs = ([r for r in mine if (r["kind"] == "spac") == own] for own in (True, False))
        stock = [r for r in theirs if r["kind"] == "llama.cpp"]
        if not ours or not theirs:
            continue
        best = max(ours, key=lambda r: r["decode"])
        line = f"{title}: {best['engine']} {best['decode']:.1f} tokens/s"
        peers = [("peer", [r]) for r in theirs if r["kind"] == "peer"]
        drafting = [r for r in stock if ", draft" in r["engine"]]
        for what, group in (("best llama.cpp", stock), ("best with a draft", drafting), *peers):
            if group:
                other = max(group, key=lambda r: r["decode"])
                ratio = best["decode"] / other["decode"]
                line += f"; {what} ({other['engine']}) {other['decode']:.1f}, {ratio:.2f} ×"
        for what, name in (("first token", "first_token_s"), ("of a follow-up", "follow_up_s")):
            least = [
                min((r[name] for r in side if r[name] is not None), default=None) for side in (ours, theirs)
            ]
            line += f"; {what} {_ms(least[0])}, theirs {_ms(least[1])}" if None not in least else ""
        lines.append(line)
    others = [f"{r['engine']} at {r['budget']}, {r['context']}" for r in rows if not r["same_text"]]
    return [*lines, f"Texts other than the first engine's: {'; '.join(others) or 'none'}."]


def repeats(rows: list[Row]) -> list[str]:
    """Return the results of the repeated cells, which show how far apart two equal cells are."""
    lines = [
        f"{row['engine']} {row['decode']:.1f} → {row['repeated']:.1f} tokens/s "
        f"({row['repeated'] / row['decode'] - 1:+.1%})"
        for row in rows if row["repeated"]
    ]  # fmt: skip
    return ["Repeated at the end: " + "; ".join(lines) + "."] if lines else []


def peers(comparison: Comparison) -> Iterator[str]:
    """Yield a line for each peer: its command, and how it was asked."""
    for engine in comparison.peers:
        found = [comparison.results.get(cell.key) for cell in comparison.grid if cell.engine == engine]
        notes = dict.fromkeys(note for result in found if result for note in result.notes)
        yield "; ".join([f"Peer {engine.name}: `{engine.command}`", *notes]) + "."


def not_run(lines: list[str]) -> list[str]:
    """Return one line per reason, with the first cells (compare.json has all)."""
    reasons: dict[str, list[str]] = {}
    for line in lines:
        what, _, reason = line.partition(": ")
        reasons.setdefault(reason, []).append(what)
    return [
        f"- {reason}: {', '.join(cells[:LISTED])}"
        + (f" and {more} more" if (more := len(cells) - LISTED) > 0 else "")
        for reason, cells in reasons.items()
    ]


def threads_of(comparison: Comparison) -> str:
    """Return each side's number of threads, with the tokens/s that chose it."""
    parts = []
    for side, speeds in comparison.speeds.items():
        tried = ", ".join(f"{n}: {speed:.1f}" for n, speed in speeds.items())
        parts.append(f"{side} {comparison.threads(side)} ({tried} tokens/s)")
    return "; ".join(parts) or f"{comparison.args.threads[0]}, not tuned"


def write(comparison: Comparison) -> list[str]:
    """Write the page and the figures. Return what must not be."""
    args, rows = comparison.args, rows_of(comparison)
    surprises = comparison.likelihoods()
    alike, wrong = likeness.judged(surprises)
    setting = {
        "target": args.target.name, "draft": args.draft.name if args.draft else None, "device": args.device,
        "threads": threads_of(comparison), "draft length": args.draft_length, "tokens": args.tokens,
        "prompts": args.texts,
    }  # fmt: skip
    titled = [part for title, mine in groups(rows) for part in (f"### {title}", figures(mine))]
    about = [", ".join(f"{name}: {value}" for name, value in setting.items()), EXPLAINED]
    about += (
        [] if comparison.on_gpu else ["There is no GPU in this: it shows that everything runs, and no speed."]
    )
    found = [
        *verdict(rows),
        *repeats(rows),
        *peers(comparison),
        *alike,
        *(f"WRONG: {line}" for line in wrong),
    ]
    listed = [f"Not run: {len(comparison.not_run) or 'nothing'}", *not_run(comparison.not_run)]
    args.out, folder = args.out / "compare.md", args.out
    values = {
        "setting": setting, "rows": rows, "wrong": wrong, "not_run": comparison.not_run,
        "perplexity": {name: likeness.perplexity(each) for name, each in surprises.items()},
        "peers": {engine.name: engine.command for engine in comparison.peers},
    }  # fmt: skip
    text = "\n\n".join(
        ["\n".join(about), *titled, "\n".join(f"- {line}" for line in found), "\n".join(listed)]
    )
    publish(args, "spac and llama.cpp side by side", text, values, commit=args.commit)
    args.out = folder
    return wrong

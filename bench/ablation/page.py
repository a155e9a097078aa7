"""Sum the runs up: a Markdown table like the paper's Table 4, and the paper's Fig. 5 as a picture."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from bench.ablation.live import FULL, PLAIN, SYSTEMS
from spac import _core
from spac.config import Slots
from spac.scheduler.belady import belady

Row = dict[str, Any]


def varied_demand(folder: Path) -> Path:
    """Return the folder of the demand of `vary`, whose runs have other prompts than those of `run`."""
    return folder / "varied"


def total(rows: Sequence[Row], name: str) -> float:
    return float(sum(row[name] or 0 for row in rows))


def distinct_rate(rows: Sequence[Row]) -> float:
    """Return the mean over generations."""
    return float(np.mean([row["hit_rate_distinct"] for row in rows]))


def accuracy(rows: Sequence[Row]) -> float:
    return float(np.mean([row["prediction"]["accuracy"] for row in rows if row["prediction"]]))


@cache
def bound(path: Path, share: str) -> tuple[float, float]:
    """Return Belady's distinct hit rate, and its uploads per step."""
    with np.load(path) as file:
        counts, shapes = file["counts"].astype(np.int32), [(int(n), int(pool)) for n, pool in file["shapes"]]
    pools = [pool for _, pool in shapes]
    n_slots = Slots.parse(share).of(sum(n for n, _ in shapes))
    best = belady(counts, pools, _core.share_out(n_slots, shapes, 1 + max(pools)))
    return best.hit_rate_distinct, best.uploads / len(counts)


def ratio_to_full(rows: Sequence[Row], name: str) -> tuple[float, float, float]:
    """Return the time per step over the printed system's, of equal generations: the median and its 95 %
    interval."""
    key = ("set", "prompt", "seed", "share", "tokens")
    full = {tuple(row[k] for k in key): row for row in rows if row["system"] == FULL}
    pairs = [
        row["decode_s"] / row["steps"] / (full[k]["decode_s"] / full[k]["steps"])
        for row in rows
        if row["system"] == name and (k := tuple(row[k] for k in key)) in full
    ]
    draws = np.random.default_rng(0).choice(np.array(pairs), (2000, len(pairs)))
    low, high = np.quantile(np.median(draws, axis=1), (0.025, 0.975))
    return float(np.median(pairs)), float(low), float(high)


COLUMNS: dict[str, Callable[[list[Row]], str]] = {
    "distinct hits": lambda rows: f"{distinct_rate(rows):.3f}",
    "activation hits": lambda rows: f"{np.mean([row['hit_rate'] for row in rows]):.3f}",
    "MB/step": lambda rows: f"{total(rows, 'moved') / total(rows, 'steps') / 1e6:.2f}",
    "uploads/step": lambda rows: f"{total(rows, 'uploads') / total(rows, 'steps'):.1f}",
    "unused": lambda rows: f"{total(rows, 'uploads_wasted') / max(1, total(rows, 'uploads')):.0%}",
    "accuracy": lambda rows: f"{accuracy(rows):.3f}",
    "predicted ms": lambda rows: f"{total(rows, 'predicted_s') / total(rows, 'steps') * 1e3:.2f}",
    "measured ms": lambda rows: f"{total(rows, 'decode_s') / total(rows, 'steps') * 1e3:.2f}",
    "scheduling": lambda rows: f"{total(rows, 'scheduler_s') / total(rows, 'decode_s'):.1%}",
}


def systems_of(runs: Sequence[Row]) -> list[str]:
    """Return the systems that ran: those of every pair, then those that follow this pair's draft."""
    return list(dict.fromkeys(row["system"] for row in runs))


def page(runs: list[Row], varied: list[Row], folder: Path) -> str:
    """Return the tables in Markdown."""
    sets, systems = sorted({row["set"] for row in runs}), systems_of(runs)
    share, tokens = runs[0]["share"], runs[0]["tokens"]
    best = {name: bound(folder / f"{name}-{share}-{tokens}.npz", share) for name in sets}
    mean = float(np.mean([rate for rate, _ in best.values()]))
    lines = [
        f"{share} slots, {tokens} tokens a generation, {len(runs) // len(systems)} generations a system. "
        "Times are per step; the ratio is of paired generations, median and 95 % interval.",
        "",
        "| system | " + " | ".join(COLUMNS) + " | of Belady | step ratio to printed |",
        "| --- " * (len(COLUMNS) + 3) + "|",
    ]
    for name in systems:
        rows = [row for row in runs if row["system"] == name]
        share_of_best = "" if name == PLAIN else f"{distinct_rate(rows) / mean:.0%}"
        middle, low, high = ratio_to_full(runs, name)
        cells = [column(rows) for column in COLUMNS.values()]
        cells += [share_of_best, f"{middle:.2f} [{low:.2f}, {high:.2f}]"]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    uploads = float(np.mean([n for _, n in best.values()]))
    rest = ["" for _ in COLUMNS][4:]
    lines.append(f"| Belady's bound | {mean:.3f} | | | {uploads:.1f} | " + " | ".join(rest) + " | 100% | |")
    lines += [
        "",
        "Distinct hits by set:",
        "",
        "| system | " + " | ".join(sets) + " |",
        "| --- " * (len(sets) + 1) + "|",
    ]
    for name in systems:
        rates = [distinct_rate([r for r in runs if r["system"] == name and r["set"] == s]) for s in sets]
        lines.append(f"| {name} | " + " | ".join(f"{rate:.3f}" for rate in rates) + " |")
    lines.append("| Belady's bound | " + " | ".join(f"{best[s][0]:.3f}" for s in sets) + " |")
    if varied:
        lines += ["", *_varied(varied, varied_demand(folder))]
    return "\n".join(lines)


def _varied(rows: list[Row], folder: Path) -> list[str]:
    lines = ["Distinct hits (and ms a step) when one thing varies:", ""]
    lines += ["| | system | distinct hits | ms/step | of Belady |", "| --- " * 5 + "|"]
    for what, value, name, group in _points(rows):
        best = _bound_of(group, folder)
        ms = total(group, "decode_s") / total(group, "steps") * 1e3
        rate = distinct_rate(group)
        lines.append(f"| {what} {value} | {name} | {rate:.3f} | {ms:.2f} | {rate / best:.0%} |")
    return lines


def _bound_of(group: list[Row], folder: Path) -> float:
    share, tokens = group[0]["share"], group[0]["tokens"]
    sets = {row["set"] for row in group}
    return float(np.mean([bound(folder / f"{name}-{share}-{tokens}.npz", share)[0] for name in sets]))


def _points(rows: list[Row]) -> list[tuple[str, str, str, list[Row]]]:
    """Return rows of (parameter that varies, its value, system, rows)."""
    points = []
    base = _base(rows)
    for row in rows:
        key = (row["share"], row["tokens"], row["system"])
        if row["system"].startswith("K = "):
            points.append(("cap", row["system"].removeprefix("K = "), FULL, key))
        elif row["tokens"] != base:
            points.append(("tokens", str(row["tokens"]), row["system"], key))
        else:
            points.append(("slots", row["share"], row["system"], key))
    found = []
    for what, value, name, key in dict.fromkeys(points):
        found.append((what, value, name, [r for r in rows if (r["share"], r["tokens"], r["system"]) == key]))
    return found


def _base(rows: list[Row]) -> int:
    """Return the draft length at which cache shares were varied: the one with the most of them."""
    lengths = {row["tokens"] for row in rows}
    return max(lengths, key=lambda tokens: len({row["share"] for row in rows if row["tokens"] == tokens}))


def draw(runs: list[Row], varied: list[Row], folder: Path, path: Path) -> None:
    """Draw Table 4's hit rates by system, and Fig. 5 by cache share, draft length and cap K."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 4, figsize=(17, 4), constrained_layout=True)
    names = [name for name in systems_of(runs) if name != PLAIN]
    rates = [distinct_rate([row for row in runs if row["system"] == name]) for name in names]
    axes[0].barh(
        names[::-1],
        rates[::-1],
        color=["#4c72b0" if n in tuple(SYSTEMS)[:7] else "#999999" for n in names[::-1]],
    )
    sets = sorted({row["set"] for row in runs})
    share, tokens = runs[0]["share"], runs[0]["tokens"]
    best = float(np.mean([bound(folder / f"{name}-{share}-{tokens}.npz", share)[0] for name in sets]))
    axes[0].axvline(best, color="black", linestyle=":", label="Belady's bound")
    axes[0].set(title=f"{share} slots, {tokens} tokens", xlabel="distinct experts resident")
    axes[0].legend(loc="lower right", fontsize=8)
    points = _points(varied) if varied else []
    labels = {"slots": "slots, %", "tokens": "tokens a generation", "cap": "highest utility K"}
    for axis, (what, label) in zip(axes[1:], labels.items(), strict=True):
        curves: dict[str, list[tuple[float, float]]] = {}
        bounds: dict[float, float] = {}
        for kind, value, name, group in points:
            if kind == what:
                x = float(value.rstrip("%"))
                curves.setdefault(name, []).append((x, distinct_rate(group)))
                bounds[x] = _bound_of(group, varied_demand(folder))
        for name, curve in curves.items():
            axis.plot(*zip(*sorted(curve), strict=True), marker="o", markersize=3, label=name)
        if bounds:
            axis.plot(
                *zip(*sorted(bounds.items()), strict=True),
                color="black",
                linestyle=":",
                label="Belady's bound",
            )
        axis.set(xlabel=label, ylabel="distinct experts resident")
        axis.legend(fontsize=7)
    figure.savefig(path, dpi=110)

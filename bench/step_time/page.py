"""Print rows of the simulation as text."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

Row = dict[str, Any]


def page(rows: list[Row], names: list[str]) -> str:
    """Return a page per machine: the figures of every recording, and each engine's best draft length."""
    parts = []
    for machine in dict.fromkeys(row["machine"] for row in rows):
        mine = [row for row in rows if row["machine"] == machine]
        parts += [_speeds(machine, mine, names), _work(machine, mine, names), _best(machine, mine, names)]
    return "\n\n\n".join(parts)


def _speeds(machine: str, rows: list[Row], names: list[str]) -> str:
    lines = [
        f"{machine}: tokens/s of llama.cpp with whole layers on the device, and ratios to it at equal VRAM",
        "",
        _head("llama", (f"{name}" for name in names), names),
    ]
    for row in rows:
        line = f"{_setting(row)} {row['layers']['rate']:7.1f}"
        for name in names:
            line += f"{row[name]['rate'] / row['layers']['rate']:{_width(name)}.2f}"
        lines.append(line)
    return "\n".join(lines)


def _work(machine: str, rows: list[Row], names: list[str]) -> str:
    lines = [f"{machine}: hits of distinct experts, uploads per step", ""]
    lines.append(_head("llama", names, names))
    for row in rows:
        line = f"{_setting(row)} {row['layers']['hits']:7.3f}"
        for name in names:
            line += f"{row[name]['hits']:.2f} {row[name]['uploads']:.0f}".rjust(_width(name))
        lines.append(line)
    return "\n".join(lines)


def _best(machine: str, rows: list[Row], names: list[str]) -> str:
    """Return the effect of a tuned draft length: per setting, acceptance and slots, the best of those
    recorded."""
    lines = [
        f"{machine}: tokens/s at the best draft length γ of each; ratios to llama.cpp's best with a draft,",
        "and to its best of any kind. `first` is the share of drafts whose first token is accepted.",
        "",
        f"{'slots':>5} {'setting':17} {'first':>5} {'llama':>7} γ"
        + "".join(f"{name + ' γ':>{_wide(name)}}" for name in names),
    ]
    groups = dict.fromkeys((row["slots"], row["name"], row["agreement"]) for row in rows if row["gamma"])
    for slots, setting, agreement in groups:
        some = [
            row
            for row in rows
            if (row["slots"], row["name"]) == (slots, setting) and row["agreement"] in (agreement, None)
        ]
        drafted = max(row["layers"]["rate"] for row in some if row["gamma"])
        any_kind = max(some, key=lambda row: float(row["layers"]["rate"]))
        best = float(any_kind["layers"]["rate"])
        line = f"{slots:>5} {setting:17} {agreement:5.0%} {best:7.1f} {any_kind['gamma']}"
        for name in names:
            own = max(some, key=lambda row: float(row[name]["rate"]))
            rate = float(own[name]["rate"])
            line += f"{rate:.1f} {own['gamma']} {rate / drafted:.2f} {rate / best:.2f}".rjust(_wide(name))
        lines.append(line)
    return "\n".join(lines)


def _wide(name: str) -> int:
    return max(20, len(name) + 4)


def _width(name: str) -> int:
    return max(10, len(name) + 2)


def _head(first: str, titles: Iterable[str], names: list[str]) -> str:
    text = f"{'slots':>5} {'setting':17} {'γ':>2} {'acc.':>5} {first:>7}"
    return text + "".join(f"{title:>{_width(name)}}" for title, name in zip(titles, names, strict=True))


def _setting(row: Row) -> str:
    accepted = f"{row['accepted']:5.0%}" if row["gamma"] else "    -"
    return f"{row['slots']:>5} {row['name']:17} {row['gamma']:>2} {accepted}"

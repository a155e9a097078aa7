"""Make the table of docs/cards.md from the files that users have sent in.

`spac bench --submit FILE` makes such a file; they lie in bench/results/cards/. With --check, the exit code
is 1 if the page is not that of the files.
"""

from __future__ import annotations

import argparse
import json
from statistics import median
from typing import Any

from bench.page import ROOT, table

CARDS = ROOT / "bench" / "results" / "cards"
PAGE = ROOT / "docs" / "cards.md"
BEGIN, END = "<!-- the table, by `python -m bench cards` -->", "<!-- the table's end -->"
HEAD = (
    "card", "memory", "CPU, cores", "model", "VRAM", "slots", "hits", "llama.cpp tokens/s",
    "spac tokens/s", "ratio", "prompt ratio", "when",
)  # fmt: skip


def best(card: dict[str, Any], name: str) -> dict[str, Any]:
    """Return a system's medians over its rounds, with its best number of threads."""
    (system,) = (each for each in card["systems"] if each["system"] == name and each["is_best"])
    keys = system["rounds"][0]
    found = {key: [each[key] for each in system["rounds"] if each[key] is not None] for key in keys}
    return {"threads": system["threads"]} | {
        key: median(all_) if all_ else None for key, all_ in found.items()
    }


def gigabytes(n_bytes: float) -> str:
    """Return bytes as text."""
    return f"{n_bytes / 1e9:.1f} GB"


def row(card: dict[str, Any]) -> list[str]:
    """Return a card's cells."""
    ours, theirs = best(card, "spac"), best(card, "llama.cpp")
    machine, model, spread = card["machine"], card["model"], card["ratio"]
    devices = machine["devices"]
    name = ", ".join(each["description"] for each in devices) or "no GPU"
    kinds = "/".join(model["expert_types"])
    shapes = (
        f"{model['architecture']}, {model['n_expert']} experts, {gigabytes(model['file_bytes'])}, {kinds}"
    )
    prompts = (ours["prompt_tokens_per_second"], theirs["prompt_tokens_per_second"])
    share = ours["slots"] / ours["n_experts"] if ours["n_experts"] else None
    return [
        name + (", WSL2" if machine["wsl2"] else ""),
        gigabytes(sum(each["memory_bytes"] for each in devices)) if devices else "–",
        f"{machine['cpu']}, {machine['cores']}",
        shapes + (f"; {card['source']}" if card.get("source") else ""),
        gigabytes(ours["vram_bytes"]),
        "all, without the split" if share is None else f"{share:.0%}",
        "–" if ours["hit_rate"] is None else f"{ours['hit_rate']:.0%}",
        f"{theirs['tokens_per_second']:.1f} ({theirs['threads']} threads)",
        f"{ours['tokens_per_second']:.1f} ({ours['threads']})",
        f"**{spread['median']:.2f}** ({spread['least']:.2f}–{spread['most']:.2f})",
        f"{prompts[0] / prompts[1]:.2f}" if all(prompts) else "–",
        card["month"],
    ]


def cards() -> list[dict[str, Any]]:
    """Return the files' contents, in the order of their names."""
    return [json.loads(path.read_text()) for path in sorted(CARDS.glob("*.json"))]


def page_with(text: str, found: str) -> str:
    """Return the page with another table."""
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}\n\n{found}\n\n{END}{rest.partition(END)[2]}"


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--check", action="store_true", help="write nothing, and say if the page is up to date"
    )


def run(args: argparse.Namespace) -> int:
    """Return the exit code."""
    before = PAGE.read_text()
    after = page_with(before, table(HEAD, map(row, cards())))
    if args.check:
        return int(before != after)
    PAGE.write_text(after)
    return 0

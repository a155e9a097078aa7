"""Compare spac and llama.cpp side by side: same files, prompts, threads and draft length, and equal VRAM.

    python -m bench.compare OUT --target FILE [--draft FILE] [--device CUDA0|simulated|cpu]
                                [--budgets SHARE …] [--contexts N …] [--only TEXT …] [--peer NAME=COMMAND …]
                                [--seconds 540] [--quick] [--commit TEXT]

Every engine runs in a process of its own. Finished cells are kept in OUT/cells. A run that has used up its
seconds (exit code 3) is called again in the same way. OUT gets compare.md and compare.json. Exit code
1 means that the page names cells that could not be run, or results that must not be (perplexities that
differ).
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.compare.cells import OUT_OF_TIME
from bench.compare.comparison import Comparison
from bench.compare.likelihood import perplexity
from bench.compare.page import breakdowns, repeats, table, verdict
from bench.compare.peer import NAMES
from bench.compare.roofline import Bandwidths
from bench.compare.rows import rows_of
from bench.program import commit, processor
from spac.errors import SpacError
from spac.machine.cpu import physical_cores

UNFINISHED = 3
LISTED = 12  # number of cells that were not run which the page names


def gpu(device: str) -> str:
    """Return the card's name and driver, as nvidia-smi reports them."""
    if not device.upper().startswith("CUDA"):
        return "no GPU"
    words = [
        "nvidia-smi",
        "-i",
        device[4:] or "0",
        "--query-gpu=name,driver_version",
        "--format=csv,noheader",
    ]
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return device
    return done.stdout.strip() or device


def not_run(lines: list[str]) -> list[str]:
    """Return one line per reason, with the first cells (compare.json has all)."""
    reasons: dict[str, list[str]] = {}
    for line in lines:
        what, _, reason = line.partition(": ")
        reasons.setdefault(reason, []).append(what)
    return [f"- {reason}: {named(cells)}" for reason, cells in reasons.items()]


def named(cells: list[str]) -> str:
    """Return the names of the first cells, and the number of the others."""
    more = f" and {len(cells) - LISTED} more" if len(cells) > LISTED else ""
    return ", ".join(cells[:LISTED]) + more


def setting_of(comparison: Comparison) -> dict[str, Any]:
    """Return the setting that the figures belong to."""
    args = comparison.args
    return {
        "target": args.target.name,
        "draft": args.draft.name if args.draft else None,
        "device": args.device,
        "threads": comparison.threads.text,
        "cores": physical_cores(),
        "draft length": args.draft_length,
        "tokens": args.tokens,
        "prompts": args.texts,
        "commit": args.commit or commit(),
        "machine": f"{processor()['name']}, {gpu(args.device)}",
    }


def peers(comparison: Comparison) -> list[str]:
    """Return a line for each peer: its command, and how it was asked."""
    lines = []
    for engine in comparison.peers:
        found = [comparison.results.get(cell.key) for cell in comparison.grid if cell.engine == engine]
        notes = dict.fromkeys(note for result in found if result for note in result.notes)
        lines.append("; ".join([f"Peer {engine.name}: `{engine.command}`", *notes]) + ".")
    return lines


def page(comparison: Comparison, bandwidths: Bandwidths | None, tables: list[str]) -> str:
    """Return the results as Markdown."""
    setting = setting_of(comparison)
    lines = ["# spac and llama.cpp side by side", "", ", ".join(f"{k}: {v}" for k, v in setting.items()), ""]
    lines.append(
        "Decode: median of the warm prompts; range: the slowest and the fastest of them; cold: the first "
        "prompt after loading, which is in no other figure. Weights: how spac's experts lay in host memory."
    )
    if bandwidths:
        link = "none" if bandwidths.link is None else f"{bandwidths.link / 1e9:.1f} GB/s"
        lines.append(
            f"Measured bandwidths: memory {bandwidths.dram / 1e9:.1f} GB/s, link {link}, "
            f"device {bandwidths.device / 1e9:.1f} GB/s; the ideal is what they allow."
        )
    if not comparison.on_gpu:
        lines.append("There is no GPU in this: it shows that everything runs, and no speed.")
    lines += ["", *tables, "", *peers(comparison), ""]
    likeness, wrong = comparison.likeness()
    lines += [*likeness, *(f"WRONG: {line}" for line in wrong)]
    lines += ["", "Not run: " + (str(len(comparison.not_run)) if comparison.not_run else "nothing")]
    lines += not_run(comparison.not_run)
    return "\n".join(lines) + "\n"


def conclude(comparison: Comparison, out: Path) -> None:
    """Write the page and the figures."""
    bandwidths = comparison.bandwidths()
    rows = rows_of(comparison, bandwidths)
    tables = [
        table(rows),
        "",
        *verdict(rows),
        *repeats(rows),
        "",
        breakdowns(rows, bandwidths, comparison.target),
    ]
    text = page(comparison, bandwidths, tables)
    (out / "compare.md").write_text(text)
    values = {
        "setting": setting_of(comparison),
        "bandwidths": asdict(bandwidths) if bandwidths else None,
        "perplexity": {name: perplexity(each) for name, each in comparison.likelihoods().items()},
        "rows": [asdict(row) for row in rows],
        "peers": {engine.name: engine.command for engine in comparison.peers},
        "wrong": comparison.likeness()[1],
        "not_run": comparison.not_run,
    }
    (out / "compare.json").write_text(json.dumps(values, indent=1) + "\n")
    print(text, end="")


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.compare",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("out", type=Path)
    add("--target", type=Path, required=True)
    add("--draft", type=Path)
    add("--device", default="CUDA0", help="CUDA0, …; simulated or cpu to try it without a GPU")
    add("--budgets", nargs="+", default=["17%", "10%", "25%", "50%"], metavar="SHARE")
    add("--contexts", nargs="+", type=int, default=[512, 4096], metavar="TOKENS")
    add("--schedulers", nargs="+",
        default=["logistic", "moe-spac", "moe-spac:paper", "lru", "lru load", "ewma", "static"],
        help="the first is the one that the comparison rests on; "
             "a value of --miss may follow a space: \"lru load\" is a plain expert cache")  # fmt: skip
    add("--only", nargs="+", metavar="TEXT", help="engines whose names contain one of these")
    add("--draft-length", type=int, default=8)
    add("--tokens", type=int, default=128, help="generated after each prompt")
    add("--texts", type=int, default=3, help="prompts, two at least; the first one is met cold")
    add("--text", type=Path, help="take prompts from this file (a twin has its own)")
    add("--threads", type=int, nargs="+", metavar="N",
        help="of several numbers each side computes with the one that a short run finds best; "
             "by default both have spac's default beside that device")  # fmt: skip
    add("--reference", type=Path, help="folder of the unpatched libllama.so")
    add("--peer", action="append", default=[], metavar="NAME=COMMAND",
        help="a server of OpenAI's completions to compare with as well; in its command, these are filled in: "
             + " ".join(f"{{{name}}}" for name in NAMES) + "; may be given several times")  # fmt: skip
    add("--seconds", type=float, default=540)
    add("--brief", action="store_true",
        help="the cells alone: no bandwidths, no perplexities, nothing repeated at the end")  # fmt: skip
    add("--commit", help="of the tree, where git cannot tell")
    add(
        "--quick",
        action="store_true",
        help="one budget, one short context, few tokens, where nothing else is said",
    )
    return parser


def main(argv: list[str] | None = None) -> int:
    """Return the exit code."""
    parser = arguments()
    args = parser.parse_args(argv)
    if min(args.threads or [1]) < 1:
        parser.error("--threads: at least 1")
    if args.quick:  # options that were given stay
        parser.set_defaults(budgets=["17%"], contexts=[64], tokens=24, texts=2)
        args = parser.parse_args(argv)
    try:
        comparison = Comparison(args)
        comparison.run()
        conclude(comparison, args.out)
    except (SpacError, OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if any(line.endswith(OUT_OF_TIME) for line in comparison.not_run):
        return UNFINISHED
    return 1 if comparison.not_run or comparison.likeness()[1] else 0


if __name__ == "__main__":
    # A peer's server ends with this program, even if the program is stopped from outside.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    sys.exit(main())

"""Write result pages in one way: the command, the machine and the commit first, then medians with ranges."""

from __future__ import annotations

import argparse
import json
import platform
import re
import statistics
import subprocess
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from spac.errors import InputError
from spac.machine.cpu import physical_cores

ROOT = Path(__file__).resolve().parents[1]
FLAGS = ("avx2", "fma", "f16c", "avx_vnni", "avx512f", "avx512bw", "avx512_vnni", "avx512_bf16", "amx_int8")
"""The instruction sets that kernels differ by, as Linux names them."""


def spread(values: Sequence[float], digits: int = 1) -> str:
    """Return the median, and the range: "12.3 (12.0–12.9)"."""
    middle, *ends = (f"{each:.{digits}f}" for each in (statistics.median(values), min(values), max(values)))
    return f"{middle} ({'–'.join(ends)})"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows))


def output(parser: argparse.ArgumentParser) -> None:
    """Add the option --out."""
    parser.add_argument(
        "--out", type=Path, metavar="PAGE.md", help="write the page; its figures beside, as .json"
    )


def publish(args: argparse.Namespace, title: str, text: str, figures: Any, *, commit: str = "") -> None:
    """Print a page. With --out, write it, and its figures beside it as .json.

    `commit` is that of the tree where git cannot tell. Raise InputError for a page that is named .json.
    """
    facts = about(args, commit)
    page = f"# {title}\n\n`{facts['command']}`, {machine()}, {facts['commit']}\n\n{text}\n"
    print(page, end="", flush=True)
    if out := getattr(args, "out", None):
        if out.suffix == ".json":
            raise InputError(f"{out}: --out takes a page, such as page.md; its figures go beside it as .json")
        out.write_text(page)
        out.with_suffix(".json").write_text(json.dumps(facts | {"figures": figures}) + "\n")


def about(args: argparse.Namespace, at: str = "") -> dict[str, Any]:
    """Return what figures belong to: the command without folders' names, the commit and the processor."""
    command = re.sub(r"[^\s'\"=]*/", "", getattr(args, "command", ""))
    return {"command": command, "commit": at or commit(), "processor": processor()}


def commit() -> str:
    """Return the commit that was measured, with + where files were changed; "unknown" outside of git."""
    call = ["git", "-C", str(ROOT), "describe", "--always", "--dirty=+", "--abbrev=7"]
    return subprocess.run(call, capture_output=True, text=True, check=False).stdout.strip() or "unknown"


def processor() -> dict[str, Any]:
    """Return the first CPU's name, family, model and flags, and how many cores this process may use."""
    try:
        lines = Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
    except OSError:
        lines = []
    facts = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    there = facts.get("flags", "").split()
    return {
        "name": facts.get("model name", platform.machine()),
        "family": facts.get("cpu family", "?"),
        "model": facts.get("model", "?"),
        "flags": [flag for flag in FLAGS if flag in there],
        "cores": physical_cores(),
    }


def machine() -> str:
    """Return the CPU in words, and the cards with their driver as nvidia-smi reports them."""
    cpu, cards = processor(), ""
    words = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    with suppress(OSError, subprocess.SubprocessError):
        cards = subprocess.run(words, capture_output=True, text=True, check=False, timeout=20).stdout
    name = f"{cpu['name']} (family {cpu['family']}, model {cpu['model']}, {cpu['cores']} cores)"
    return "; ".join([name, *cards.strip().splitlines()])

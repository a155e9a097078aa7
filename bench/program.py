"""What programs of benchmarks share: errors as one line, a page with its figures beside, and what a figure
belongs to: the commit, and the CPU with its family, model and instruction sets."""

from __future__ import annotations

import argparse
import json
import platform
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from spac.errors import SpacError
from spac.machine.cpu import physical_cores

ROOT = Path(__file__).resolve().parents[1]
FLAGS = ("avx2", "fma", "f16c", "avx_vnni", "avx512f", "avx512bw", "avx512_vnni", "avx512_bf16", "amx_int8")
"""The instruction sets that kernels differ by, as Linux names them."""


def run_program(run: Callable[[argparse.Namespace], None], args: argparse.Namespace) -> int:
    """Call `run`, and return the exit code. Bad input gets one line on stderr."""
    try:
        run(args)
    except (ValueError, OSError, SpacError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def publish(text: str, out: Path | None, title: str, figures: Any) -> None:
    """Print a page. If `out` is given, write the page there under a title, and its figures beside it as
    .json."""
    print(text)
    if out:
        out.write_text(f"{title}\n\n{text}\n")
        out.with_suffix(".json").write_text(json.dumps(figures) + "\n")


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


def about(module: str, arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Return what a file of figures begins with: the command, the commit and the processor.

    Without `arguments`, they are those of this process.
    """
    given = sys.argv[1:] if arguments is None else arguments
    command = shlex.join(["python", "-m", module, *given])
    return {"command": command, "commit": commit(), "processor": processor()}


def where() -> str:
    """Return one line for a page: the CPU and the commit."""
    cpu = processor()
    return f"{cpu['name']} (family {cpu['family']}, model {cpu['model']}, {cpu['cores']} cores), {commit()}"

"""Measure whole models on the CPU alone: `python -m bench.cpu_lane FILE [--peer "NAME=LLAMA_BENCH …"]`.

It measures one token at a time (32 in a row), batches of four tokens, and a prompt of 256 tokens, each from
an empty context, with random tokens and the logits of the last one, as llama-bench does. The systems are
spac, the unpatched library (weights repacked as it likes, and plain), and other
engines' llama-bench programs with their options. They run in turns, each in a process of its own, and the
file is read before each. The table has medians in tokens per second and ranges, and spac's speed over each
other's, as the median of the rounds' ratios. --out writes the page, and its figures as JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from bench.program import publish, run_program, where
from spac.errors import InputError
from spac.machine.cpu import physical_cores
from tools.compare.driver import reference_library

ROOT = Path(__file__).resolve().parents[1]
KINDS = {"tg": "1 token", "pp4": "4 tokens", "pp256": "prompt of 256"}
OURS = "spac"
OWN = (OURS, "llama.cpp, repacked", "llama.cpp, plain")


def own(system: str, model: str, n_threads: int) -> dict[str, float]:
    """Return the figures of a process of its own."""
    env = dict(os.environ)
    if system != OURS:
        folder = reference_library()
        if folder is None:
            raise InputError("set SPAC_REFERENCE_LIB to the folder of the unpatched library")
        env["LLAMA_CPP_LIB_PATH"] = str(folder)
    call = [sys.executable, "-m", "bench.plain_batches", system, model, str(n_threads)]
    return dict(json.loads(_output(call, env).splitlines()[-1]))


def peer(program: str, model: str, n_threads: int) -> dict[str, float]:
    """Return what another engine's llama-bench prints. `program` may have options."""
    call = [*program.split(), "-m", model, "-t", str(n_threads)]
    call += ["-p", "4,256", "-n", "32", "-r", "5", "-o", "json"]
    output = _output(call, dict(os.environ))
    rows = json.loads(output[output.index("[") :])
    speeds = {(row["n_prompt"], row["n_gen"]): float(row["avg_ts"]) for row in rows}
    return {"tg": speeds[0, 32], "pp4": speeds[4, 0], "pp256": speeds[256, 0]}


def _output(call: list[str], env: dict[str, str]) -> str:
    done = subprocess.run(call, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise InputError(f"{call[0]} failed: {(done.stderr.strip().splitlines() or [''])[-1]}")
    return done.stdout


def read(path: Path) -> None:
    """Read a file, so that it lies in the system's cache."""
    space = bytearray(1 << 24)
    with path.open("rb", buffering=0) as file:
        while file.readinto(space):
            pass


def page(found: dict[str, list[dict[str, float]]]) -> str:
    """Return the tables."""
    titles = list(KINDS.values())
    lines = ["| | " + " | ".join(titles) + " |", "| --- |" + " --- |" * len(KINDS)]
    for system, runs in found.items():
        speeds = {kind: [run[kind] for run in runs] for kind in KINDS}
        cells = [f"{statistics.median(s):.1f} ({min(s):.1f} to {max(s):.1f})" for s in speeds.values()]
        lines.append(f"| {system} | " + " | ".join(cells) + " |")
    lines += ["", f"The speed of {OURS} over that of each other:", ""]
    for system in [name for name in found if name != OURS]:
        pairs = list(zip(found[OURS], found[system], strict=True))
        shares = [statistics.median(a[kind] / b[kind] for a, b in pairs) for kind in KINDS]
        words = [f"{title} {share:.2f}" for title, share in zip(titles, shares, strict=True)]
        lines.append(f"- {system}: {', '.join(words)}")
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    """Return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.cpu_lane", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("model", type=Path)
    parser.add_argument("--threads", type=int, default=physical_cores())
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peer", action="append", default=[], metavar='"NAME=PROGRAM OPTIONS"')
    parser.add_argument("--out", type=Path)
    return run_program(run, parser.parse_args(argv))


def run(args: argparse.Namespace) -> None:
    if not args.model.is_file():
        raise InputError(f"there is no file {args.model}")
    peers = dict(each.split("=", 1) for each in args.peer)
    systems: dict[str, Callable[[], dict[str, float]]] = {
        **{name: lambda name=name: own(name, str(args.model), args.threads) for name in OWN},
        **{name: lambda call=call: peer(call, str(args.model), args.threads) for name, call in peers.items()},
    }
    found: dict[str, list[dict[str, float]]] = {name: [] for name in systems}
    for _ in range(args.rounds):
        for name, measure in systems.items():
            read(args.model)
            found[name].append(measure())
    others = "".join(f", {name}: {Path(call).name}" for name, call in peers.items())
    title = f"{args.model.name}, tokens per second, {args.threads} threads{others}. {where()}"
    publish(page(found), args.out, title, found)


if __name__ == "__main__":
    sys.exit(main())

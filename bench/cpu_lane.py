"""Measure whole models on the CPU alone, beside llama.cpp and other engines' llama-bench.

It measures one token at a time (32 in a row), batches of four tokens, and a prompt of 256 tokens, each from
an empty context, with random tokens and the logits of the last one, as llama-bench does. The systems are
spac, the unpatched library (weights repacked as it likes, and plain), and other engines' llama-bench
programs with their options (--peer "NAME=LLAMA_BENCH OPTIONS"). They run in turns, each in a process of its
own, and the file is read before each. The table has medians in tokens per second and ranges, and spac's
speed over each other's, as the median of the rounds' ratios.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

from bench.page import output, publish, spread, table
from bench.processes import ROOT, environment
from spac.errors import InputError
from spac.machine.cpu import physical_cores
from tools.compare.driver import reference_library

KINDS = {"tg": "1 token", "pp4": "4 tokens", "pp256": "prompt of 256"}
OURS = "spac"
OWN = (OURS, "llama.cpp, repacked", "llama.cpp, plain")


def own(system: str, model: Path, n_threads: int) -> dict[str, float]:
    """Return the figures of a process of its own."""
    if system == OURS:
        call = ["-m", "bench", "cpu_lane", model, "--threads", n_threads, "--worker", system]
        return json.loads(_output([sys.executable, *call], None).splitlines()[-1])
    folder = reference_library()
    if folder is None:
        raise InputError("set SPAC_REFERENCE_LIB to the folder of the unpatched library")
    call = ["-m", "bench.unpatched", model, n_threads, system.split(", ")[1]]
    return json.loads(_output([sys.executable, *call], folder).splitlines()[-1])


def peer(program: str, model: Path, n_threads: int) -> dict[str, float]:
    """Return what another engine's llama-bench prints. `program` may have options."""
    call = [*program.split(), "-m", model, "-t", n_threads, "-p", "4,256", "-n", 32, "-r", 5, "-o", "json"]
    output = _output(call, None)
    speeds = {
        (row["n_prompt"], row["n_gen"]): row["avg_ts"] for row in json.loads(output[output.index("[") :])
    }
    return {"tg": speeds[0, 32], "pp4": speeds[4, 0], "pp256": speeds[256, 0]}


def _output(call: list[object], reference: Path | None) -> str:
    words = list(map(str, call))
    done = subprocess.run(
        words, cwd=ROOT, env=environment(reference), capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise InputError(f"{words[0]} failed: {(done.stderr.strip().splitlines() or [''])[-1]}")
    return done.stdout


def read(path: Path) -> None:
    """Read a file, so that it lies in the system's cache."""
    space = bytearray(1 << 24)
    with path.open("rb", buffering=0) as file:
        while file.readinto(space):
            pass


def page(found: dict[str, list[dict[str, float]]]) -> str:
    """Return the tables."""
    rows = [
        [system, *(spread([run[kind] for run in runs]) for kind in KINDS)] for system, runs in found.items()
    ]
    shares = [
        [system, *(
            f"{statistics.median(a[kind] / b[kind] for a, b in zip(found[OURS], runs, strict=True)):.2f}"
            for kind in KINDS
        )]
        for system, runs in found.items() if system != OURS
    ]  # fmt: skip
    titles = list(KINDS.values())
    return (
        f"{table(('system', *titles), rows)}\n\n{table((f'speed of {OURS} over that of', *titles), shares)}"
    )


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", type=Path)
    parser.add_argument("--threads", type=int, default=physical_cores())
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peer", action="append", default=[], metavar='"NAME=PROGRAM OPTIONS"')
    parser.add_argument("--worker", choices=[OURS], help=argparse.SUPPRESS)
    output(parser)


def run(args: argparse.Namespace) -> None:
    if not args.model.is_file():
        raise InputError(f"there is no file {args.model}")
    if args.worker:
        return print(json.dumps(worker(args)), flush=True)
    peers = dict(each.split("=", 1) for each in args.peer)
    found: dict[str, list[dict[str, float]]] = {name: [] for name in (*OWN, *peers)}
    for _ in range(args.rounds):
        for name, runs in found.items():
            read(args.model)
            measure, what = (peer, peers[name]) if name in peers else (own, name)
            runs.append(measure(what, args.model, args.threads))
    publish(
        args, f"{args.model.name} on the CPU, tokens per second, {args.threads} threads", page(found), found
    )
    return None


def worker(args: argparse.Namespace) -> dict[str, float]:
    """Return the figures of spac, in this process."""
    from spac.config import EngineConfig
    from spac.model.pair import ModelPair

    config = EngineConfig(args.model, device="cpu", ctx=1024, threads=args.threads)
    pair = ModelPair(config, None)
    from bench.unpatched import Decoder, batches  # after spac, which chooses the library

    return batches(Decoder(pair.target_context.pointer))

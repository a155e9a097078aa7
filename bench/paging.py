"""Measure decoding with more experts than host memory holds: `python -m bench.paging --target FILE --memory
7G`.

A process takes all of the machine's memory except `--memory`, as other programs would, so that every engine
has the same shortage. Then three engines run in turns, each in a process of its own and from a cold file:

    llama.cpp    the unpatched library, on the CPU alone, weights as the file has them
    unpaged      spac on the simulated device without slots, --paging off: the system reads what is touched
    paged        the same, as spac decides by itself (spac/model/paging.py)

The first of three prompts starts with a cold file, and the others with what memory holds by then (warm). The
results are medians over the rounds, and over the rounds' ratios of warm speeds. The benchmark needs the
unpatched library (-DSPAC_BUILD_REFERENCE=ON) and a machine without swap. No other process may have the file
open.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.compare.cells import run_cell
from bench.compare.job import Job
from spac.config.values import VramLimit
from spac.machine import host_memory
from spac.machine.cpu import cpu_name, physical_cores
from spac.machine.device_memory import size
from spac.model.c_api import Model
from tools.reference import reference_folder

ROOT = Path(__file__).resolve().parents[1]
PROMPTS = ("def fibonacci(n):", "The history of the city begins with", "import numpy as np\n\nclass Matrix:")
SECONDS = 900  # seconds of one process


@contextmanager
def all_memory_but(n_bytes: int) -> Iterator[None]:
    """Let another process hold all available memory except `n_bytes` until the block ends."""
    hold = (
        "import mmap, sys\nn = int(sys.argv[1])\nm = mmap.mmap(-1, n)\n"
        "for i in range(0, n, mmap.PAGESIZE): m[i] = 1\n"
        "print(flush=True)\nsys.stdin.read()"
    )
    taken = max(mmap.PAGESIZE, host_memory.available() - n_bytes)
    command = [sys.executable, "-c", hold, str(taken)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        if not process.stdout.readline():
            raise SystemExit("bench.paging: the memory could not be taken")
        try:
            yield
        finally:
            process.stdin.close()


def make_cold(path: Path) -> None:
    """Remove the file from the system's cache."""
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def jobs(given: argparse.Namespace) -> dict[str, Job]:
    """Return the job of each engine."""
    model = Model(given.target, (), {"vocab_only": True})
    prompts = [model.tokenize(text).tolist() for text in PROMPTS]
    model.close()
    job = Job(
        kind="spac", target=str(given.target), prompts=prompts, n_predict=given.tokens, ctx=512,
        threads=given.threads, device="simulated", scheduler="none",
    )  # fmt: skip
    # Memory does not hold both forms of the weights.
    stock = replace(job, kind="llama.cpp", device="cpu", repack=False)
    return {"llama.cpp": stock, "unpaged": replace(job, paging="off"), "paged": job}


def measure(given: argparse.Namespace, reference: Path) -> list[dict[str, Any]]:
    """Return a row for every process."""
    rows = []
    with tempfile.TemporaryDirectory() as folder, all_memory_but(VramLimit.parse(given.memory).of(2**62)):
        for n in range(given.rounds):
            for engine, job in jobs(given).items():
                make_cold(given.target)
                library = reference if engine == "llama.cpp" else None
                result = run_cell(job, Path(folder), engine.replace(".", "-"), library, SECONDS)
                if result.error:
                    raise SystemExit(f"{engine}: {result.error}")
                runs = result.each
                read = [
                    run.figures["disk_bytes"] for run in runs if run.figures.get("disk_bytes") is not None
                ]
                warm = sum(len(run.tokens) for run in runs[1:])
                rows.append(
                    {
                        "round": n, "engine": engine, "load_s": result.load_s,
                        "first_token_s": runs[0].first_token_s,
                        "cold_tokens_per_second": runs[0].decode_speed,
                        "tokens_per_second": warm / sum(run.decode_s for run in runs[1:]),
                        "disk_mb_per_token": sum(read[1:]) / warm / 1e6 if read else None,
                        "tokens": [run.tokens for run in runs],
                    }
                )  # fmt: skip
                print({key: value for key, value in rows[-1].items() if key != "tokens"}, file=sys.stderr)
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """Return a table of medians, with the ratio to llama.cpp."""
    engines = list(dict.fromkeys(row["engine"] for row in rows))

    def of(engine: str, name: str) -> list[float]:
        return [row[name] for row in rows if row["engine"] == engine and row[name] is not None]

    lines = [
        "| engine | loading, s | first token, s | tokens/s, cold | warm | to llama.cpp | read, MB/token |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for engine in engines:
        speeds, read = of(engine, "tokens_per_second"), of(engine, "disk_mb_per_token")
        ratio = statistics.median(
            a / b for a, b in zip(speeds, of(engines[0], "tokens_per_second"), strict=True)
        )
        lines.append(
            f"| {engine} | {statistics.median(of(engine, 'load_s')):.1f} "
            f"| {statistics.median(of(engine, 'first_token_s')):.1f} "
            f"| {statistics.median(of(engine, 'cold_tokens_per_second')):.2f} "
            f"| {statistics.median(speeds):.2f} | {ratio:.2f} "
            f"| {f'{statistics.median(read):.0f}' if read else ''} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--memory", required=True, metavar="SIZE", help="what is left to the engines")
    parser.add_argument("--tokens", type=int, default=64, help="behind each of the three prompts")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=physical_cores())
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    if (reference := reference_folder()) is None:
        sys.exit("bench.paging: needs the unpatched library: build with -DSPAC_BUILD_REFERENCE=ON")
    rows = measure(given, reference)
    same = all(row["tokens"] == rows[0]["tokens"] for row in rows)
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.strip()
    what = f"{given.target.name}, {size(given.target.stat().st_size)}, with {given.memory} of memory"
    print(f"{what}; {cpu_name()}, {given.threads} threads, {commit}; texts {'equal' if same else 'DIFFER'}\n")
    print(table(rows))
    if given.out:
        page = {
            "command": " ".join(["python -m bench.paging", *sys.argv[1:]]), "machine": cpu_name(),
            "commit": commit, "what": what, "texts_equal": same,
            "rows": [{key: value for key, value in row.items() if key != "tokens"} for row in rows],
        }  # fmt: skip
        given.out.write_text(json.dumps(page, indent=1) + "\n")


if __name__ == "__main__":
    main()

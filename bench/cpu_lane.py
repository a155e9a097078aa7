"""Measure the CPU alone with one whole model: `python -m bench.cpu_lane --model FILE … [--peer
NAME=LLAMA_BENCH …]`.

It measures decoding of one token, verification of four tokens in one batch, and a prompt of 256 tokens, in
tokens per second. It uses spac's library, the unpatched library at its best setting (weights repacked, and
not repacked), and the llama-bench programs of other engines. Every measurement is a process of its own, and
the file is read into memory before it starts. All measurements run in turns, --rounds times. The table has
medians and ranges. It compares the rate at which one token's weights are read with the rate at which the
machine reads the file's mapping in the same round. --out writes all figures as JSON. --profile shows instead
which functions spac spends its time in, for each of the three kinds, by samples of Linux's perf.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from bench.compare.cells import environment
from bench.provenance import commit, processor, where
from spac.machine.cpu import physical_cores
from spac.model.gguf.check import check_model
from spac.model.gguf.header import read_header
from spac.model.gguf.info import ModelInfo
from tools.reference import reference_folder

ROOT = Path(__file__).resolve().parents[1]
PROMPT, VERIFIED, DECODED = 256, 4, 32
KINDS = ("tg", f"pp{VERIFIED}", f"pp{PROMPT}")
NAMES = {"tg": "1 token", f"pp{VERIFIED}": f"{VERIFIED} tokens", f"pp{PROMPT}": f"prompt of {PROMPT}"}
BUFFER = bytearray(1 << 24)
Scope = Callable[[str], AbstractContextManager[None]]
TOKENS = np.random.default_rng(1)


def tokens(n: int, n_vocab: int) -> list[int]:
    """Return random tokens, as llama-bench uses them."""
    return [int(token) for token in TOKENS.integers(0, n_vocab, n)]


def measure(
    decode: Callable[[list[int], int], object], n_vocab: int, scope: Scope = lambda _: nullcontext()
) -> dict[str, float]:
    """Return tokens per second of each kind, each measured in a `scope`.

    `decode` evaluates tokens from a position on.
    """
    position = 0

    def speed(batches: int, size: int) -> float:
        nonlocal position
        waiting = [tokens(size, n_vocab) for _ in range(batches)]
        start = time.perf_counter()
        for batch in waiting:
            decode(batch, position)
            position += size
        return batches * size / (time.perf_counter() - start)

    speed(1, PROMPT // 2)  # touches every page once
    speed(4, 1)
    found = {}
    for kind, batches, size in zip(
        KINDS[::-1], (1, DECODED // VERIFIED, DECODED), (PROMPT, VERIFIED, 1), strict=True
    ):
        with scope(kind):
            found[kind] = speed(batches, size)
    return found


@contextmanager
def sampled(kind: str) -> Iterator[None]:
    """Sample this process in this scope, and print its most costly functions with their share of the time."""
    with tempfile.TemporaryDirectory() as folder:
        data = f"{folder}/perf.data"
        recorder = subprocess.Popen(["perf", "record", "-q", "-o", data, "-p", str(os.getpid())])
        time.sleep(0.5)  # until it has begun
        yield
        recorder.send_signal(signal.SIGINT)
        recorder.wait()
        report = ["perf", "report", "-i", data, "--stdio", "-q", "--no-children", "-F", "overhead,symbol"]
        done = subprocess.run(report, capture_output=True, text=True, check=True)
    lines = [line for line in done.stdout.splitlines() if line.strip()]
    print(f"{NAMES[kind]}:", *lines[:12], sep="\n")


def worker(
    engine: str, model: str, threads: int, options: dict[str, Any], scope: Scope = lambda _: nullcontext()
) -> dict[str, Any]:
    """Return the figures of one measurement, which runs in this process. `options`: spac's configuration."""
    start = time.perf_counter()
    if engine == "spac":
        from spac.config import EngineConfig
        from spac.model.pair import ModelPair

        pair = ModelPair(EngineConfig(target=model, device="cpu", ctx=1024, threads=threads, **options), None)
        context, notes = pair.target_context.pointer, pair.notes
        decode, n_vocab = decoder_of(context, pair.target.pointer)
    else:
        from bench.compare import stock
        from bench.compare.job import Job
        from bench.compare.pool import ThreadPool

        stock.start()
        job = Job(
            "speed", model, [], 0, 1024, threads, "cpu", draft_length=VERIFIED, repack=engine != "plain"
        )
        theirs, notes = stock.Decoder(model, job, ThreadPool(threads)), []
        decode, n_vocab = decoder_of(theirs.context, theirs.model)
    loaded = time.perf_counter() - start
    return {**measure(decode, n_vocab, scope), "load_s": loaded, "notes": notes}


def decoder_of(context: Any, model: Any) -> tuple[Callable[[list[int], int], object], int]:
    """Return a function that evaluates tokens from a position on, and the size of the vocabulary."""
    import llama_cpp.llama_cpp as api

    batch = api.llama_batch_init(PROMPT, 0, 1)

    def decode(given: list[int], position: int) -> None:
        batch.n_tokens = len(given)
        for i, token in enumerate(given):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.seq_id[i][0] = token, position + i, 1, 0
            batch.logits[i] = i + 1 == len(given) or len(given) <= VERIFIED
        if status := api.llama_decode(context, batch):
            raise RuntimeError(f"llama_decode returned {status} at position {position}")
        api.llama_synchronize(context)

    return decode, api.llama_vocab_n_tokens(api.llama_model_get_vocab(model))


def llama_bench(program: str, model: str, threads: int) -> dict[str, float]:
    """Return what another engine's llama-bench prints."""
    command = [
        *program.split(), "-m", model, "-t", str(threads), "-p", f"{VERIFIED},{PROMPT}",
        "-n", str(DECODED), "-r", "2", "-o", "json",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    rows = json.loads(done.stdout[done.stdout.index("[") :])
    by_kind = {(row["n_prompt"], row["n_gen"]): float(row["avg_ts"]) for row in rows}
    return {
        KINDS[0]: by_kind[0, DECODED],
        KINDS[1]: by_kind[VERIFIED, 0],
        KINDS[2]: by_kind[PROMPT, 0],
    }


def run(engine: str, model: str, threads: int, options: dict[str, Any]) -> dict[str, Any]:
    """Return the figures of one measurement in a process of its own."""
    reference = None if engine == "spac" else Path(reference_folder() or "")
    read_file(Path(model))
    words = ["--worker", engine, "--model", model, "--threads", str(threads)]
    words += ["--options", json.dumps(options)]
    done = subprocess.run(
        [sys.executable, "-m", "bench.cpu_lane", *words], cwd=ROOT, env=environment(reference),
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"bench.cpu_lane: {engine} failed: {done.stderr.strip().splitlines()[-1:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def table(found: dict[str, list[dict[str, Any]]]) -> str:
    """Return one row per engine: medians, with ranges, in tokens per second."""
    lines = ["| | " + " | ".join(NAMES[kind] for kind in KINDS) + " |", "| --- |" + " --- |" * len(KINDS)]
    for engine, runs in found.items():
        cells = []
        for kind in KINDS:
            speeds = [run[kind] for run in runs]
            cells.append(f"{statistics.median(speeds):.1f} ({min(speeds):.1f} to {max(speeds):.1f})")
        lines.append(f"| {engine} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def read_file(path: Path) -> None:
    """Read a file, so that it lies in the system's cache."""
    with path.open("rb", buffering=0) as file:
        while file.readinto(BUFFER):
            pass


def token_bytes(info: ModelInfo) -> float:
    """Return the bytes of weights that one token reads: not the embeddings, and the experts that it uses."""
    tensors = read_header(info.path).tensors
    embeddings = sum(t.n_bytes for t in tensors if t.name == "token_embd.weight")
    dense = sum(t.n_bytes for t in tensors) - info.expert_bytes - embeddings
    return dense + info.expert_bytes * info.n_expert_used / max(1, info.n_expert)


def read_rate(path: Path, n_threads: int) -> float:
    """Return the GB/s at which so many threads add up the numbers of a mapped file, each its own part."""
    whole = np.memmap(path, np.uint8, "r")
    parts = np.array_split(whole[: whole.size // 8 * 8].view(np.uint64), n_threads)
    seconds = []
    with ThreadPoolExecutor(n_threads) as pool:
        for _ in range(3):
            start = time.perf_counter()
            list(pool.map(np.sum, parts))
            seconds.append(time.perf_counter() - start)
    return whole.size / statistics.median(seconds) / 1e9


def bandwidths(found: dict[str, list[dict[str, Any]]], rates: list[float], n_bytes: float) -> str:
    """Return what the machine reads, and what each engine reads while it decodes one token at a time."""
    rate = statistics.median(rates)
    parts = []
    for engine, runs in found.items():
        gb_s = statistics.median(run[KINDS[0]] for run in runs) * n_bytes / 1e9
        parts.append(f"{engine} {gb_s:.1f} ({gb_s / rate:.0%})")
    return (
        f"The machine reads {rate:.1f} GB/s from a file's mapping. A token's weights are "
        f"{n_bytes / 1e9:.2f} GB. Decoding reads, in GB/s: {', '.join(parts)}."
    )


def ratios(found: dict[str, list[dict[str, Any]]]) -> str:
    """Return spac's speed over that of the best other engine: the median of the rounds' ratios."""
    words = []
    for kind in KINDS:
        best = max(
            (engine for engine in found if not engine.startswith("spac")),
            key=lambda engine: statistics.median(run[kind] for run in found[engine]),
        )
        pairs = zip(found["spac"], found[best], strict=True)
        words.append(f"{NAMES[kind]} {statistics.median(a[kind] / b[kind] for a, b in pairs):.2f} ({best})")
    return "spac / best other: " + ", ".join(words)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True)
    parser.add_argument("--threads", type=int, default=physical_cores())
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=PROGRAM", help="a llama-bench")
    parser.add_argument("--options", type=json.loads, default={}, help="spac's configuration, as JSON")
    parser.add_argument(
        "--variant", action="append", default=[], metavar="NAME=JSON", help="spac with other options"
    )
    parser.add_argument("--out", type=Path)
    parser.add_argument("--profile", action="store_true", help="show where spac's time goes")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        print(json.dumps(worker(given.worker, given.model, given.threads, given.options)))
        return
    if given.profile:
        print(f"{Path(given.model).name}, share of samples, {given.threads} threads. {where()}")
        read_file(Path(given.model))
        worker("spac", given.model, given.threads, given.options, sampled)
        return
    variants = {name: json.loads(text) for name, _, text in (item.partition("=") for item in given.variant)}
    peers = dict(item.split("=", 1) for item in given.peer)
    found: dict[str, list[dict[str, Any]]] = {}
    engines = ("spac", *(f"spac {name}" for name in variants), "llama.cpp, repacked", "llama.cpp, plain")
    rates = []
    for _ in range(given.rounds):
        read_file(Path(given.model))
        rates.append(read_rate(Path(given.model), given.threads))
        for engine in engines:
            kind = "spac" if engine.startswith("spac") else "plain" if "plain" in engine else "repacked"
            options = variants.get(engine.removeprefix("spac "), given.options)
            found.setdefault(engine, []).append(run(kind, given.model, given.threads, options))
        for name, program in peers.items():
            read_file(Path(given.model))
            found.setdefault(name, []).append(llama_bench(program, given.model, given.threads))
    title = f"{Path(given.model).name}, tokens per second, {given.threads} threads. {where()}"
    n_bytes = token_bytes(check_model(Path(given.model)))
    print(f"{title}\n\n{table(found)}\n\n{ratios(found)}\n\n{bandwidths(found, rates, n_bytes)}")
    if given.out:
        command = " ".join(["python -m bench.cpu_lane", *sys.argv[1:]])
        page = {
            "command": command.replace(given.model, Path(given.model).name),
            "machine": processor(), "commit": commit(), "runs": found, "read_gb_s": rates,
            "token_gb": n_bytes / 1e9,
        }  # fmt: skip
        given.out.write_text(json.dumps(page, indent=1) + "\n")


if __name__ == "__main__":
    main()

"""Read a long prompt between captured steps on a card that has little memory left.

ggml's CUDA graphs keep the addresses of the memory that its kernels borrow. So what a captured graph borrowed
must not be freed when a longer prompt needs more than the card has left. A process for each number of MB
fills the slots, decodes single tokens until their graphs are captured, takes all of the card's memory but so
much, reads a prompt, and decodes single tokens again. Each of their logits must equal those of a process that
takes no memory, to the bit. Exit code 1: one differs, or a process ended early, which RESULT.json names.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from bench import processes
from bench.gpu_suite.probes import Driver, Failed

SINGLE = 6
"""Single tokens before and behind the prompt. ggml captures a graph that it has seen twice."""
SLOTS = "17%"
MB = 1 << 20


def take(driver: Driver, left: int) -> tuple[int, int]:
    """Take the card's memory but `left` bytes. Return the bytes that were free, and that are free now."""
    free, before, total = ctypes.c_size_t(), 0, ctypes.c_size_t()
    for piece in (256 * MB, 2 * MB):
        driver("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        before = before or free.value
        while free.value >= left + piece:
            try:
                driver.device_memory(piece)
            except Failed:
                break
            driver("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
    return before, free.value


def compute(target: Path, device: str, threads: int, n_prompt: int, left: int | None) -> np.ndarray:
    """Return float32 [2 * SINGLE, n_vocab]: the logits of the single tokens. left: bytes; None: take
    nothing."""
    import spac  # noqa: F401  # before llama_cpp: it chooses the library
    from bench.compare.ours import logits, make_resident
    from spac import _core
    from spac.config import EngineConfig
    from spac.model.c_api import echo_log
    from spac.model.pair import ModelPair

    echo_log(_echo)
    config = EngineConfig(target=str(target), device=device, slots=SLOTS, ctx=n_prompt + 512, draft_length=0,
                          threads=threads, paging="off", batch=4096, ubatch=4096,
                          stream_batch=64)  # fmt: skip
    tokens = np.random.default_rng(0).integers(0, 1000, n_prompt + 2 * SINGLE).tolist()
    pair = ModelPair(config, None)
    try:
        make_resident(pair, SLOTS)
        assert pair.experts is not None
        pair.experts.set_stream_tokens(64)  # a new pair streams nothing
        found = [logits(pair, [tokens[at]], at).copy() for at in range(SINGLE)]
        if left is not None:
            free, now = take(Driver(), left)
            print(f"free {free / MB:.0f} MB, now {now / MB:.0f} MB", flush=True)
        for at in range(SINGLE, SINGLE + n_prompt, config.batch):
            piece = tokens[at : min(at + config.batch, SINGLE + n_prompt)]
            if status := _core.decode(pair.target_context.pointer, piece, at, logits=False):
                raise RuntimeError(f"llama_decode returned {status}")
        found += [logits(pair, [tokens[at]], at).copy() for at in range(SINGLE + n_prompt, len(tokens))]
        return np.concatenate(found)
    finally:
        pair.close()
        echo_log(None)


def _echo(level: int, text: bytes, _: object) -> None:
    """Write warnings and errors to stderr, and what ggml says of its pool."""
    if level in (3, 4) or b"pool[" in text:
        os.write(2, text)


def rows_of(args: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    """Return a row for every process."""
    rows: list[dict[str, Any]] = []
    wanted = None
    for left in (None, *args.left):
        result = folder / f"{left}.npy"
        words = [sys.executable, "-m", "bench", "full_card", result, "--child", "--target"]
        words += [args.target, "--device", args.device, "--threads", args.threads, "--prompt", args.prompt]
        words += ["--left", left] if left is not None else []
        log = args.result.with_name(f"full-card-{left}.txt")
        ended = processes.run(words, log, args.seconds)
        row: dict[str, Any] = {
            "left_mb": left,
            "fault": ended.fault,
            "flushes": ended.output.count("flushing"),
        }
        if not ended.fault:
            found = np.load(result)
            wanted = found if wanted is None else wanted
            row["unequal_rows"] = int((found != wanted).any(1).sum())
            row["finite"] = bool(np.isfinite(found).all())
        rows.append(row)
        print(row, flush=True)
    return rows


def options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("result", type=Path, metavar="RESULT.json")
    add("--target", type=Path, required=True)
    add("--device", default="CUDA0")
    add("--left", type=int, nargs="*", default=[], metavar="MB", help="the card's memory that is left")
    add("--threads", type=int, default=0, help="0: spac's default")
    add("--prompt", type=int, default=8192, help="tokens of the prompt")
    add("--seconds", type=float, default=60, help="of one process")
    add("--child", action="store_true", help=argparse.SUPPRESS)  # for the processes that this one starts


def run(args: argparse.Namespace) -> int:
    """Return the exit code."""
    if args.child:
        left = args.left[0] * MB if args.left else None
        np.save(args.result, compute(args.target, args.device, args.threads, args.prompt, left))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        rows = rows_of(args, Path(folder))
    args.result.write_text(json.dumps(rows, indent=1) + "\n")
    return int(any(row["fault"] or row["unequal_rows"] or not row["finite"] for row in rows))

"""Profile the card in some steps of spac or llama.cpp: kernels, copies and gaps, by torch's profiler.

    python -m bench.gpu_suite.step_profile RESULT.json.gz spac|llama.cpp --target FILE [--draft FILE]
           [--device CUDA0] [--slots 17%] [--n-cpu-moe N] [--steps 24] [--threads N] [--draft-length N]

RESULT has every event of the card (name, stream, start and length in ns). A table goes to stdout: where a
step's time goes, and the kernels that take most of it. The card's side needs PyTorch with CUDA. The unpatched
library is the one that LLAMA_CPP_LIB_PATH names.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bench.compare.job import Job

WARM = 24  # steps before those that are profiled
TIMED = 8  # steps that are timed without the profiler, for each step that is profiled
LISTED = 24  # kernels in the table
Event = tuple[str, int, int, int]
"""Name, stream, start and length in nanoseconds."""


def job_of(args: argparse.Namespace, prompt: list[int]) -> Job:
    """Return the job that bench.compare would run."""
    kind = "spac" if args.side == "spac" else "llama.cpp"
    return Job(
        kind=kind, target=str(args.target), prompts=[prompt], n_predict=4096, ctx=2048, threads=args.threads,
        device=args.device, draft=str(args.draft) if args.draft else None, draft_length=args.draft_length,
        n_cpu_moe=args.n_cpu_moe, slots=args.slots, scheduler="logistic",
        governor=None if args.draft_length or not args.draft else "roofline", lookahead=args.lookahead,
    )  # fmt: skip


def spac_steps(job: Job) -> Iterator[None]:
    """Decode, and yield after every step."""
    import spac  # noqa: F401  # before llama_cpp: it chooses the library
    from bench.compare.ours import config_of
    from spac.engine import Engine

    with Engine(config_of(job)) as engine:
        steps = []
        engine.events.after_step.append(lambda step: steps.append(None))
        known = 0
        for _ in engine.generate(job.prompts[0], job.n_predict):
            while known < len(steps):
                known += 1
                yield


def stock_steps(job: Job) -> Iterator[None]:
    """Decode with llama.cpp, one token a step, and yield after every step."""
    from bench.compare import stock
    from bench.compare.pool import ThreadPool

    stock.start()
    decoder = stock.Decoder(job.target, job, ThreadPool(job.threads), job.n_cpu_moe)
    tokens = list(job.prompts[0])
    decoder.decode(tokens[:-1], 0)
    while True:
        decoder.decode(tokens[-1:], len(tokens) - 1, logits="last")
        tokens.append(decoder.best(-1))
        yield


def profile(steps: Iterator[None], n: int) -> tuple[list[Event], float]:
    """Return the card's events of `n` steps, and the seconds that as many steps take without the profiler."""
    import torch
    from torch.profiler import ProfilerActivity

    for _ in range(WARM):
        next(steps)
    begun = time.perf_counter()
    for _ in range(TIMED * n):
        next(steps)
    plain = (time.perf_counter() - begun) / TIMED
    activities = [ProfilerActivity.CUDA] if torch.cuda.is_available() else [ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities) as found:
        for _ in range(n):
            next(steps)
    events: list[Event] = []
    results: Any = found.profiler.kineto_results  # type: ignore[union-attr]
    for event in results.events():
        if "CUDA" in str(event.device_type()):
            place = event.device_resource_id()
            events.append((event.name(), int(place), int(event.start_ns()), int(event.duration_ns())))
    return sorted(events, key=lambda each: each[2]), plain


def union(events: list[Event]) -> int:
    """Return the nanoseconds in which at least one of the events, sorted by start, is under way."""
    busy, end = 0, 0
    for _, _, start, length in events:
        busy += max(0, start + length - max(start, end))
        end = max(end, start + length)
    return busy


def table(events: list[Event], n: int, plain: float) -> str:
    """Return where the time of a step goes."""
    lines = [f"{plain / n * 1e3:.2f} ms a step without the profiler"]
    if not events:
        return lines[0] + "; no events of a card"
    span = events[-1][2] + events[-1][3] - events[0][2]
    by_stream: dict[int, list[Event]] = defaultdict(list)
    for event in events:
        by_stream[event[1]].append(event)
    lines.append(
        f"{span / n / 1e6:.2f} ms a step with it; the card is busy {union(events) / span:.0%} of that"
    )
    for stream, some in sorted(by_stream.items(), key=lambda item: -len(item[1])):
        copies = [event for event in some if event[0].startswith(("Memcpy", "Memset"))]
        lines.append(
            f"stream {stream}: {len(some) / n:.0f} events a step, busy {union(some) / n / 1e6:.2f} ms; "
            f"copies {len(copies) / n:.0f}, {union(copies) / n / 1e6:.2f} ms"
        )
    taken: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for name, _, _, length in events:
        taken[name] += length
        counts[name] += 1
    lines += [
        f"{length / n / 1e3:9.1f} µs {counts[name] / n:7.1f} ×  {name[:110]}"
        for name, length in taken.most_common(LISTED)
    ]
    return "\n".join(lines)


def main() -> int:
    """Return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("result", type=Path)
    add("side", choices=("spac", "llama.cpp"))
    add("--target", type=Path, required=True)
    add("--draft", type=Path)
    add("--device", default="CUDA0")
    add("--slots", default="17%")
    add("--n-cpu-moe", type=int, default=None)
    add("--steps", type=int, default=24)
    add("--threads", type=int, default=0)
    add("--draft-length", type=int, default=0, help="0 with --draft: the governor's")
    add("--lookahead", type=int, default=None)
    args = parser.parse_args()
    if args.side == "spac":
        import spac  # noqa: F401  # before llama_cpp
    args.threads = args.threads or os.cpu_count() or 1
    job = job_of(args, list(range(1000, 1256)))
    sides: dict[str, Callable[[Job], Iterator[None]]] = {"spac": spac_steps, "llama.cpp": stock_steps}
    events, plain = profile(sides[args.side](job), args.steps)
    with gzip.open(args.result, "wt", 6) as file:
        json.dump({"job": vars(args) | {"result": "", "target": args.target.name, "draft": bool(args.draft)},
                   "seconds": plain, "events": events}, file)  # fmt: skip
    print(table(events, args.steps, plain))
    return 0


if __name__ == "__main__":
    sys.exit(main())

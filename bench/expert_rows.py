"""Measure what an expert costs the CPU when several tokens use it, with spac's kernels and with ggml's.

The operator is mul_mat_id over eight experts of 768 x 2048. Each expert is used by 1 to 8 tokens and read
from memory: the experts change from run to run, and all 128 of them hardly fit into a cache. spac's kernels
(csrc/kernels) and ggml's own run in turns, in one process. spac computes with the ways that it has measured
to be the fastest on this machine (spac.model.kernels). Times are medians of microseconds. The ratio is the
median of the pairs' ratios.
"""

from __future__ import annotations

import argparse
import statistics
from typing import Any

import numpy as np

from bench.page import output, publish, table
from spac import _core, _library
from spac.errors import InputError
from spac.machine.cpu import physical_cores
from spac.model import kernels
from tools.patches.ggml import Ggml
from tools.patches.operators import Ids, Operator, Shape, operator, weights_on

TOKENS = tuple(range(1, 9))
N_USED, N_EXPERT = 8, 128


def tables(n_tokens: int, n_runs: int) -> list[Ids]:
    """Return [n_tokens, 8] for each run: all tokens use the same eight experts, the next run the next eight.

    The number of groups of eight is odd, so that over time both kernels get each of them. The place of
    experts in memory can make them a little faster or slower.
    """
    eights = N_EXPERT // N_USED - 1
    return [
        np.tile(np.arange(N_USED) + N_USED * (run % eights), (n_tokens, 1)).astype(np.int32)
        for run in range(n_runs)
    ]


def pairs(it: Operator, n_tokens: int, n_pairs: int) -> tuple[list[float], list[float]]:
    """Return the seconds with ggml's kernels and with spac's, measured in turns."""
    times: dict[bool, list[float]] = {False: [], True: []}
    for i, ids in enumerate(tables(n_tokens, 2 * n_pairs + 4)):
        ours = i % 2 == 1
        _core.set_cpu_kernels(ours)
        seconds = it.time(ids)
        if i >= 4:
            times[ours].append(seconds)
    _core.set_cpu_kernels(True)
    return times[False], times[True]


def measure(kinds: list[str], n_threads: int, n_pairs: int) -> list[dict[str, Any]]:
    ggml = Ggml(_library.library_path())
    device = ggml.device("CPU")
    found = []
    with ggml.backend(device, n_threads) as backend:
        for kind in kinds:
            shapes = [
                Shape(kind, n, "mul_mat_id", True, n_used=N_USED, n_expert=N_EXPERT, n_in=2048, n_out=768)
                for n in TOKENS
            ]
            with weights_on(ggml, backend, device, shapes[0]) as weights:
                assert weights is not None
                size = ggml.c.ggml_nbytes(weights["up"]) / (N_EXPERT + 1)
                for shape in shapes:
                    with operator(ggml, backend, shape, weights) as it:
                        theirs, ours = pairs(it, shape.n_tokens, n_pairs)
                    ratio = statistics.median(a / b for a, b in zip(theirs, ours, strict=True))
                    found.append({
                        "kind": kind, "tokens": shape.n_tokens, "expert_mb": size / 1e6, "ratio": ratio,
                        "ggml_us": statistics.median(theirs) / N_USED * 1e6,
                        "spac_us": statistics.median(ours) / N_USED * 1e6,
                    })  # fmt: skip
    return found


def cells(found: list[dict[str, Any]]) -> str:
    """Return a line for each type."""
    lines = []
    for kind in dict.fromkeys(row["kind"] for row in found):
        rows = [row for row in found if row["kind"] == kind]
        each = [f"{row['ggml_us']:.0f} → {row['spac_us']:.0f}: {row['ratio']:.2f}" for row in rows]
        lines.append([kind, f"{rows[0]['expert_mb']:.2f}", *each])
    return table(("type", "MB", *(f"{n} token{'s' * (n > 1)}" for n in TOKENS)), lines)


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--kinds", nargs="+", default=_core.trusted_cpu_kernels(), metavar="TYPE")
    parser.add_argument("--threads", type=int, default=physical_cores())
    parser.add_argument("--pairs", type=int, default=40)
    output(parser)


def run(args: argparse.Namespace) -> None:
    if unknown := sorted(set(args.kinds) - set(_core.trusted_cpu_kernels())):
        raise InputError(
            f"this build has no CPU kernels of spac's for {', '.join(unknown)} (spac doctor says why)"
        )
    if not args.kinds:
        raise InputError("this build has no CPU kernels of spac's (spac doctor says why)")
    ways = kernels.choose(args.kinds, args.threads)
    found = measure(args.kinds, args.threads, args.pairs)
    title = f"Microseconds per expert, ggml's kernels → spac's: ratio, {args.threads} threads"
    publish(args, title, cells(found), {"build": _core.system_info().strip(), "ways": ways, "rows": found})

"""Check the patches for all weight types on a device, with a library that is built.

It checks mul_mat_id, add_id and CUDA's fusions of them under masks. Every shape is computed without a mask on
the CPU and on the device, and with every mask on the device. Skipped rows must be exactly zero. Kept rows
must equal those of the device's own unmasked run within an error. Where whole experts are masked, kept rows
that differ by a bit are counted, and the reader judges the number. The unmasked run must be within an error
of the CPU's.

OUT gets patches.txt and patches.json. Each type runs in a process of its own, whose result stays in OUT. A
run that used up its seconds (exit code 3) is called again in the same way and continues.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bench import processes
from bench.page import publish, table
from spac import _library
from spac.machine.arrays import Float32Array
from tools.patches.ggml import Ggml
from tools.patches.operators import MASKS, Count, Ids, Shape, masked, operator, weights_on
from tools.patches.worker import grouped

UNFINISHED = 3
OPS = ("mul_mat_id", "add_id", "bias", "glu", "bias_glu")
# 128 rows are a whole tile of mmq. The others take its fallback. 80 and 40 of floats go to cuBLAS.
SIZES = ((256, 64), (512, 128), (512, 96), (256, 80), (512, 40))
# The normalized mean square error that upstream's own operator tests allow, and ten times it behind a GLU.
BOUND = {"mul_mat_id": 5e-4, "add_id": 1e-7, "bias": 5e-4, "glu": 5e-3, "bias_glu": 5e-3}


def shapes_of(kind: str, quick: bool) -> list[Shape]:
    """Return every operator with 1 to 64 tokens. Layouts, sizes and experts per token take turns."""
    found = []
    for n in (1, 5, 9, 33) if quick else range(1, 65):
        for i, op in enumerate(OPS):
            turn = n + i
            n_in, n_out = SIZES[turn % 5]
            found.append(
                Shape(
                    kind, n, op, broadcast=turn % 2 == 0 or "glu" in op, strided=turn % 4 < 2,
                    n_used=(3, 8, 6, 4)[turn // 2 % 4], n_expert=16, n_in=n_in, n_out=n_out,
                )
            )  # fmt: skip
    return found


@dataclass
class Result:
    kind: str
    supported: bool = True
    n_shapes: int = 0
    experts: Count = field(default_factory=Count)  # of masks of whole experts
    rows: Count = field(
        default_factory=Count
    )  # of masks of single rows, which may change the order of additions
    worst_error: float = 0.0  # of the unmasked run, or under a mask, as a share of the bound
    failures: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def fail(self, what: str) -> None:
        self.failures += [what][: 20 - len(self.failures)]


def squares(result: Float32Array, wanted: Float32Array, kept: np.ndarray) -> np.ndarray:
    """Return the sum of the kept rows' squared errors, and the sum of their squares."""
    a, b = result[kept].astype(np.float64), wanted[kept].astype(np.float64)
    return np.array([np.square(a - b).sum(), np.square(b).sum()])


def share(of: np.ndarray, op: str) -> float:
    """Return a normalized mean square error, as a share of the allowed one."""
    if of[1] == 0:
        return 0.0 if of[0] == 0 else float("inf")
    value = float(of[0] / of[1]) / BOUND[op]
    return value if np.isfinite(value) else float("inf")


def judge(total: Result, shape: Shape, mask: str, ids: Ids, out: Float32Array, own: Float32Array) -> None:
    """Judge a masked run against the device's own without a mask."""
    count = total.rows if mask == "rows" else total.experts
    before = count.n_nonzero
    count.add(ids, [out], [own])
    changed, wrong = share(squares(out, own, ids >= 0), shape.op), count.n_nonzero - before
    total.worst_error = max(total.worst_error, changed)
    if wrong or not changed <= 1:
        total.fail(f"{shape.name} mask {mask}: {wrong} rows not zero, changed by {changed:.2g} bounds")


def judge_all(total: Result, sums: dict[str, np.ndarray]) -> None:
    """Judge the device without masks against the CPU, all shapes of an operator together. A few rows alone
    may be twice as far off, because the two round inputs differently."""
    for op, of in sums.items():
        total.worst_error = max(total.worst_error, share(of, op))
        if not share(of, op) <= 1:
            total.fail(f"{op}: error {share(of, op):.2g} of the bound")


def run_type(library: Path, device_name: str, kind: str, quick: bool) -> Result:
    start = time.monotonic()
    ggml = Ggml(library)
    device, cpu = ggml.device(device_name), ggml.device("CPU")
    result, sums = Result(kind), dict[str, np.ndarray]()
    with ExitStack() as both:
        there = both.enter_context(ggml.backend(device))
        here = both.enter_context(ggml.backend(cpu))
        for _, group in grouped(shapes_of(kind, quick)):
            with (
                weights_on(ggml, there, device, group[0]) as weights,
                weights_on(ggml, here, cpu, group[0]) as weights_here,
            ):
                if weights is None or weights_here is None:
                    result.supported = False
                    continue
                for shape in group:
                    result.n_shapes += 1
                    with operator(ggml, here, shape, weights_here) as it:
                        wanted = it.run(shape.ids())[0]
                    with operator(ggml, there, shape, weights) as it:
                        own = it.run(shape.ids())[0]
                        for mask in MASKS:
                            ids = masked(shape, mask)
                            judge(result, shape, mask, ids, it.run(ids)[0], own)
                    everything = np.ones(own.shape[:2], bool)
                    sums[shape.op] = sums.get(shape.op, 0) + squares(own, wanted, everything)
    judge_all(result, sums)
    result.seconds = round(time.monotonic() - start, 1)
    return result


def check(args: argparse.Namespace, kinds: list[str]) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the results of the types, with those of earlier runs, and the types that lacked time."""
    deadline = time.monotonic() + args.seconds
    parts = args.out / f"types-{args.device}{'-quick' if args.quick else ''}"
    parts.mkdir(parents=True, exist_ok=True)

    def run(kind: str) -> dict[str, Any] | None:
        part = parts / f"{kind}.json"
        if not part.is_file():
            words = [
                sys.executable,
                "-m",
                "bench",
                "patches",
                part,
                "--type",
                kind,
                "--library",
                args.library,
            ]
            words += ["--device", args.device, *(["--quick"] if args.quick else [])]
            left = max(0.0, deadline - time.monotonic())
            ended = processes.run(words, parts / f"{kind}.txt", left, processes.environment(None))
            if ended.code is None:
                return None
            if ended.fault:
                return {"kind": kind, "failures": [f"{kind}: {ended.fault}"]}
        return json.loads(part.read_text())  # type: ignore[no-any-return]

    with ThreadPoolExecutor(max(1, min(4, args.jobs // 2))) as pool:
        results = list(pool.map(run, kinds))
    unfinished = [kind for kind, result in zip(kinds, results, strict=True) if result is None]
    return [result for result in results if result is not None], unfinished


def page(results: list[dict[str, Any]], unfinished: list[str]) -> str:
    """Return the results on one page."""
    rows = []
    for r in results:
        if "experts" not in r or not r["supported"]:
            rows.append(
                [r["kind"], "crashed" if "experts" not in r else "no kernel on this device", *[""] * 7]
            )
            continue
        experts, single = r["experts"], r["rows"]
        both = [str(experts[name] + single[name]) for name in ("n_kept", "n_skipped", "n_nonzero")]
        changed = [str(each["n_unequal"]) for each in (experts, single)]
        rows.append(
            [r["kind"], str(r["n_shapes"]), *both, *changed, f"{r['worst_error']:.3f}", f"{r['seconds']}"]
        )
    head = ("type", "shapes", "kept", "skipped", "not zero", "changed", "(rows)", "error/bound", "seconds")
    failures = [line for r in results for line in r["failures"]]
    lines = [*failures, *(f"{kind}: not run yet" for kind in unfinished)]
    lines.append(
        "changed: kept rows that differ by a bit from the device's own run, when whole experts are masked;"
        "\n(rows): the same for masks of single rows, where another order of additions is allowed."
    )
    if failures:
        lines.append("FAILED")
    elif not unfinished:
        changed = any(r["experts"]["n_unequal"] for r in results)
        more = ", but masks change bits of kept rows: residency is not bit-exact here" if changed else ""
        lines.append(f"PASSED{more}")
    return "\n\n".join([table(head, rows), "\n".join(lines)])


def options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("out", type=Path, metavar="OUT", help="where the results go")
    add("--library", type=Path, default=_library.library_path())
    add("--device", default="CUDA0", help="CUDA0, …, or CPU to try the check itself")
    add("--types", help="weight types, separated by commas (default: all)")
    add("--seconds", type=float, default=540, help="stop after that many")
    add("--jobs", type=int, default=os.cpu_count() or 1)
    add("--quick", action="store_true", help="four numbers of tokens in place of 64")
    add("--type", help=argparse.SUPPRESS)  # for the processes that this one starts; `out` is their result


def run(args: argparse.Namespace) -> int:
    """Return the exit code: 0 if all is right, 1 if not, 3 if time ran out."""
    if args.type:
        result = asdict(run_type(args.library, args.device, args.type, args.quick))
        written = args.out.with_suffix(".tmp")  # a file that exists is complete
        written.write_text(json.dumps(result))
        written.replace(args.out)
        return 0
    ggml = Ggml(args.library)
    results, unfinished = check(args, args.types.split(",") if args.types else list(ggml.types))
    device = ggml.description(ggml.device(args.device))
    args.out /= "patches.txt"
    publish(args, f"The ids mask on {args.device} ({device})", page(results, unfinished), results)
    return UNFINISHED if unfinished else int(any(r["failures"] for r in results))

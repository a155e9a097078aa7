"""Measure what it brings to read rows of experts before they are asked for: `python -m bench.early_rows`.

Beside a device, the CPU's threads wait for a layer's ids. Meanwhile they may read the rows of experts that
the layer will probably need (csrc/backend/split/early_rows.h). Here they wait for 50, 100 and 200 µs, and
then compute a layer's experts for one token: --experts of 768 x 2048 out of 128, which come from memory,
because the experts change from run to run. Before, they read nothing, or rows of some of these experts
(`right`), or of others first (`wrong`). All these run in turns. The table has medians of the time of
computing, and its ratio to that of threads that read nothing. --kinds names types of weights, --threads sets
the number of threads, and --out writes the page, and its figures as JSON.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from cffi import FFI

from bench.program import publish, run_program, where
from spac import _core, _library
from spac.errors import InputError
from spac.machine.cpu import physical_cores
from spac.model import kernels
from tools.patches.ggml import Ggml

WIDTH, N_FF, N_EXPERT = 2048, 768, 128
WAITS = (50, 100, 200)
WARM = 10
_ffi = FFI()


class Layer:
    """A layer's experts in a graph of ggml's, which reads its ids from memory."""

    def __init__(self, ggml: Ggml, backend: Any, kind: str, n_used: int, keep: ExitStack) -> None:
        """Make the graph with random weights. `keep` frees its memory."""
        c, self._ggml = ggml.c, ggml
        weights, context = ggml.context(3), ggml.context(8)
        shapes = {"gate": (WIDTH, N_FF), "up": (WIDTH, N_FF), "down": (N_FF, WIDTH)}
        number = ggml.types[kind]
        self._tensors = {
            name: c.ggml_new_tensor_3d(weights, number, *shape, N_EXPERT) for name, shape in shapes.items()
        }
        keep.enter_context(ggml.memory(weights, backend, weights=True))
        rng = np.random.default_rng(0)
        for name, (n_in, n_out) in shapes.items():
            expert = ggml.quantize(number, rng.standard_normal((n_out, n_in), np.float32) * np.float32(0.02))
            self.expert_bytes = len(expert)
            for index in range(N_EXPERT):
                c.ggml_backend_tensor_set(self._tensors[name], expert, index * len(expert), len(expert))
        x = c.ggml_new_tensor_3d(context, ggml.F32, WIDTH, 1, 1)
        self._ids = c.ggml_new_tensor_2d(context, ggml.I32, n_used, 1)
        up, gate = (c.ggml_mul_mat_id(context, self._tensors[name], x, self._ids) for name in ("up", "gate"))
        active = c.ggml_swiglu_split(context, gate, up)
        out = c.ggml_mul_mat_id(context, self._tensors["down"], active, self._ids)
        graph = ggml.graph(context, [out])
        self.graph = int(_ffi.cast("uintptr_t", graph))
        keep.enter_context(ggml.memory(context, backend))
        ggml.write(x, rng.standard_normal((1, 1, WIDTH)).astype(np.float32))

    def use(self, experts: list[int]) -> None:
        """Set the experts that the layer computes."""
        self._ggml.write(self._ids, np.array([experts], np.int32))

    def rows(self, experts: list[int]) -> list[tuple[int, int]]:
        """Return address and bytes of the matrices of these experts."""
        return [
            (int(_ffi.cast("uintptr_t", self._ggml.c.ggml_get_data(tensor))) + index * self.expert_bytes,
             self.expert_bytes)
            for index in experts
            for tensor in self._tensors.values()
        ]  # fmt: skip


@contextmanager
def layer_of(kind: str, n_used: int) -> Iterator[Layer]:
    ggml = Ggml(_library.library_path())
    with ggml.backend(ggml.device("CPU"), 1) as backend, ExitStack() as keep:
        yield Layer(ggml, backend, kind, n_used, keep)


def cases(n_used: int) -> list[tuple[int, int]]:
    """Return the numbers of wrong and right experts that are read, in this order."""
    return [(0, 0), *((0, n) for n in range(1, n_used + 1)), (1, 0), (1, n_used), (2, 0), (2, n_used)]


def measure(kind: str, n_threads: int, n_used: int, repeats: int) -> list[dict[str, Any]]:
    """Return a row for every wait and case."""
    lane, found, at = _core.Lane(n_threads), [], 0
    with layer_of(kind, n_used) as layer:
        for wait in WAITS:
            runs: dict[tuple[int, int], list[tuple[int, float]]] = {case: [] for case in cases(n_used)}
            for _ in range(repeats + WARM):
                for (wrong, right), times in runs.items():
                    experts = [(at + i) % N_EXPERT for i in range(n_used + 2)]
                    at += n_used + 2
                    layer.use(experts[:n_used])
                    read = [*experts[n_used : n_used + wrong], *experts[:right]]
                    times.append(lane.run(layer.rows(read), wait * 1e-6, layer.graph))
            base = _seconds(runs[0, 0])
            found += [
                {
                    "kind": kind, "wait_us": wait, "wrong": wrong, "right": right,
                    "read_mb": statistics.median(n for n, _ in times[WARM:]) / 1e6,
                    "us": _seconds(times) * 1e6, "ratio": _seconds(times) / base,
                }
                for (wrong, right), times in runs.items()
            ]  # fmt: skip
    return found


def _seconds(times: list[tuple[int, float]]) -> float:
    return statistics.median(seconds for _, seconds in times[WARM:])


def table(rows: list[dict[str, Any]]) -> str:
    """Return one line for every type and wait."""
    tried = dict.fromkeys((row["wrong"], row["right"]) for row in rows)
    names = [f"{wrong} wrong, {right} right" for wrong, right in tried]
    lines = [
        "| type | wait µs | nothing | " + " | ".join(names[1:]) + " |",
        "| --- | --- |" + " --- |" * len(names),
    ]
    for kind, wait in dict.fromkeys((row["kind"], row["wait_us"]) for row in rows):
        mine = [row for row in rows if (row["kind"], row["wait_us"]) == (kind, wait)]
        cells = [f"{mine[0]['us']:.0f} µs"]
        cells += [f"{row['ratio']:.2f} ({row['read_mb']:.1f} MB)" for row in mine[1:]]
        lines.append(f"| {kind} | {wait} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    """Return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.early_rows", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--kinds", nargs="+", default=["q4_K", "q6_K", "q8_0", "mxfp4"], metavar="TYPE")
    parser.add_argument("--threads", type=int, default=physical_cores())
    parser.add_argument("--experts", type=int, default=3, help="that the CPU computes in a layer")
    parser.add_argument("--repeats", type=int, default=100)
    parser.add_argument("--out", type=Path)
    return run_program(run, parser.parse_args(argv))


def run(args: argparse.Namespace) -> None:
    if not 1 <= args.experts <= N_EXPERT // 8:
        raise InputError(f"--experts must be 1 to {N_EXPERT // 8}")
    if unknown := set(args.kinds) - set(_core.trusted_cpu_kernels()):
        raise InputError(f"this build has no kernels for {', '.join(sorted(unknown))}")
    kernels.choose(args.kinds, args.threads)
    rows = [row for kind in args.kinds for row in measure(kind, args.threads, args.experts, args.repeats)]
    command = f"python -m bench.early_rows --threads {args.threads} --experts {args.experts}"
    publish(table(rows), args.out, f"# Rows that are read early\n\n`{command}`, {where()}", rows)


if __name__ == "__main__":
    sys.exit(main())

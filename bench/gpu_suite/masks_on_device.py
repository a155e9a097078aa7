"""Check mul_mat_id, add_id and CUDA's fusions of them, under masks, for one weight type on one device.

    python -m bench.gpu_suite.masks_on_device LIBRARY DEVICE TYPE RESULT [--quick]

Every shape is computed without a mask on the CPU and on the device, and with every mask on the device.
Skipped rows must be exactly zero. Kept rows must equal those of the device's own unmasked run within an
error. Where whole experts are masked, kept rows that differ by a bit are counted, and the reader judges the
number. The unmasked run must be within an error of the CPU's.
"""

from __future__ import annotations

import json
import sys
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from spac.machine.arrays import Float32Array
from tools.patches.ggml import Ggml
from tools.patches.masks import MASKS, Count, masked
from tools.patches.operators import Ids, Shape, operator, weights_on
from tools.patches.worker import grouped

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
    n_kept: int = 0
    n_skipped: int = 0
    n_nonzero: int = 0
    n_unequal: int = 0  # rows that a mask of whole experts changed by a bit or more
    n_unequal_rows: int = 0  # the same for masks of single rows, which may change the order of additions
    worst_error: float = 0.0  # of the unmasked run, or under a mask, as a share of the bound
    failures: list[str] = field(default_factory=list)
    seconds: float = 0.0


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


def fail(total: Result, what: str) -> None:
    if len(total.failures) < 20:
        total.failures.append(what)


def judge(total: Result, shape: Shape, mask: str, ids: Ids, out: Float32Array, own: Float32Array) -> None:
    """Judge a masked run against the device's own without a mask."""
    count = Count()
    count.add(ids, [out], [own])
    total.n_kept += count.n_kept
    total.n_skipped += count.n_skipped
    total.n_nonzero += count.n_nonzero
    if mask == "rows":
        total.n_unequal_rows += count.n_unequal
    else:
        total.n_unequal += count.n_unequal
    changed = share(squares(out, own, ids >= 0), shape.op)
    total.worst_error = max(total.worst_error, changed)
    if count.n_nonzero or not changed <= 1:
        fail(
            total,
            f"{shape.name} mask {mask}: {count.n_nonzero} rows not zero, changed by {changed:.2g} bounds",
        )


def judge_all(total: Result, sums: dict[str, np.ndarray]) -> None:
    """Judge the device without masks against the CPU, all shapes of an operator together. A few rows alone
    may be twice as far off, because the two round inputs differently."""
    for op, of in sums.items():
        total.worst_error = max(total.worst_error, share(of, op))
        if not share(of, op) <= 1:
            fail(total, f"{op}: error {share(of, op):.2g} of the bound")


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


def main() -> None:
    library, device, kind, path = sys.argv[1:5]
    result = run_type(Path(library), device, kind, "--quick" in sys.argv)
    # The file is written in one step, because the suite takes an existing file for a result.
    unfinished = Path(path).with_suffix(".tmp")
    unfinished.write_text(json.dumps(asdict(result)))
    unfinished.replace(path)


if __name__ == "__main__":
    main()

"""Run operators with one library, in a process of its own.

    python -m tools.patches.worker reference LIBRARY JOB RESULTS        unmasked results, to the file RESULTS
    python -m tools.patches.worker check     LIBRARY JOB RESULTS COUNTS masked ones, compared with RESULTS

JOB is JSON: {"shapes": [...], "n_threads": 1, "extra": false, "device": "CPU"}. With "extra", weights go to
each of the CPU's extra buffer types (repacked and the like) that can compute the operator.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import numpy as np

from tools.patches.ggml import Ggml
from tools.patches.operators import MASKS, Count, Operator, Shape, masked, operator, weights_on, with_spare


@contextmanager
def operators(library: Path, job: dict[str, object]) -> Iterator[Iterator[tuple[str, Shape, Operator]]]:
    """Yield (name of the buffer type, shape, operator) for every shape of the job that can be computed."""
    ggml = Ggml(library)
    device = ggml.device(str(job.get("device", "CPU")))
    shapes = [Shape(**shape) for shape in job["shapes"]]  # type: ignore[attr-defined]
    buffers = ggml.extra_buffer_types(device) if job["extra"] else {"plain": None}
    with ggml.backend(device, int(str(job["n_threads"]))) as backend:

        def walk() -> Iterator[tuple[str, Shape, Operator]]:
            for buffer, (_, group) in itertools.product(buffers, grouped(shapes)):
                with weights_on(ggml, backend, device, group[0], buffers[buffer]) as weights:
                    for shape in group if weights is not None else ():
                        with operator(ggml, backend, shape, weights) as it:
                            yield buffer, shape, it

        yield walk()


def grouped(shapes: list[Shape]) -> list[tuple[str, list[Shape]]]:
    """Group shapes by the weights that they share."""

    def weights(s: Shape) -> str:
        return f"{s.kind} {s.n_in}x{s.n_out}x{s.n_expert} {'glu' in s.op}"

    return [(key, list(group)) for key, group in itertools.groupby(sorted(shapes, key=weights), weights)]


def reference(library: Path, job: dict[str, object], results: Path) -> None:
    arrays = {}
    with operators(library, job) as walk:
        for buffer, shape, it in walk:
            full = it.run(shape.ids())
            # A repacked kernel's table of rows cannot hold an expert that a token names twice. Neither can
            # CUDA's, where a row's bits do not depend on how many others its expert has.
            alike = job["extra"] or "device" in job
            spare = full if alike else it.run(with_spare(shape, masked(shape, "rows")))
            for i, (a, b) in enumerate(zip(full, spare, strict=True)):
                arrays[f"{buffer}/{shape.name}/full/{i}"] = a
                arrays[f"{buffer}/{shape.name}/spare/{i}"] = b
    np.savez(results, **arrays)  # type: ignore[arg-type]


def check(library: Path, job: dict[str, object], results: Path, counts: Path) -> None:
    found: dict[str, Count] = {}
    with np.load(results) as file:
        arrays = dict(file)
    with operators(library, job) as walk:
        for buffer, shape, it in walk:
            for mask in MASKS:
                ids = masked(shape, mask)
                out = it.run(ids)
                which = "spare" if mask == "rows" else "full"
                expected = [arrays[f"{buffer}/{shape.name}/{which}/{i}"] for i in range(len(out))]
                found.setdefault(f"{buffer}|{shape.name}|{mask}", Count()).add(ids, out, expected)
    counts.write_text(json.dumps({key: asdict(count) for key, count in found.items()}))


def main() -> None:
    mode, library, job, results = sys.argv[1], *map(Path, sys.argv[2:5])
    description = json.loads(job.read_text())
    if mode == "reference":
        reference(library, description, results)
    else:
        check(library, description, results, Path(sys.argv[5]))


if __name__ == "__main__":
    main()

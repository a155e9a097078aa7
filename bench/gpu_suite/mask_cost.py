"""Measure the time of one mul_mat_id under masks, by slots in the tensor, tokens and masked share.

    python -m bench.gpu_suite.mask_cost LIBRARY DEVICE RESULT [--quick]

A pool of slots is one stacked tensor, much longer than a layer. Kernels that work by expert (mmq) visit only
the experts that ids name (patches/0004).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tools.patches.ggml import Ggml
from tools.patches.masks import masked
from tools.patches.operators import MANY, Shape, operator, weights_on

MASKS = ("none", "half", "all")
N_RUNS = 20


def measure(library: Path, device_name: str, quick: bool) -> list[dict[str, object]]:
    """Return median microseconds of one q4_K mul_mat_id for each number of slots and tokens, by mask."""
    ggml = Ggml(library)
    device = ggml.device(device_name)
    n_in, n_out = (256, 64) if quick else (2048, 768)
    found: list[dict[str, object]] = []
    with ggml.backend(device) as backend:
        for n_slots in (16, 32) if quick else (128, 2048):
            shapes = [
                Shape("q4_K", n, "many", True, n_used=8, n_expert=n_slots, n_in=n_in, n_out=n_out)
                for n in ((1, 9) if quick else (1, 4, 8, 9, 16, 32, 64))
            ]
            with weights_on(ggml, backend, device, shapes[0]) as weights:
                for shape in shapes if weights is not None else ():
                    with operator(ggml, backend, shape, weights) as it:
                        times = {m: it.seconds(masked(shape, m), N_RUNS) / MANY * 1e6 for m in MASKS}
                    found.append({"slots": n_slots, "tokens": shape.n_tokens, "microseconds": times})
    return found


def main() -> None:
    library, device, path = sys.argv[1:4]
    Path(path).write_text(json.dumps(measure(Path(library), device, "--quick" in sys.argv)))


if __name__ == "__main__":
    main()

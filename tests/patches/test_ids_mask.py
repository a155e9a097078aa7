"""On the CPU, mul_mat_id and add_id skip negative ids, zero their rows, and change no bit of any other row.

The tests compare with the unpatched library for every weight type, 1 to 64 tokens, and masks from none to
all. They cover plain, tiled and repacked kernels.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

import pytest

from spac import _library
from tools.patches.operators import BY_EXPERT, MASKS, Shape

ROOT = Path(__file__).resolve().parents[2]
# All types that llama.cpp can hold weights in.
KINDS = (
    "f32", "f16", "bf16", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q2_K", "q3_K", "q4_K", "q5_K", "q6_K",
    "iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s", "iq1_s", "iq1_m", "iq4_nl", "iq4_xs", "tq1_0", "tq2_0",
    "mxfp4", "nvfp4", "q1_0", "q2_0",
)  # fmt: skip
# Types for which the CPU has tiled kernels. These run from 8 rows per expert on, or always when forced.
TILED = ("q2_K", "q3_K", "q4_K", "q5_K", "q6_K", "iq4_xs", "iq2_xxs", "iq3_s", "iq1_m")
# Types that are repacked on x86 or ARM, depending on the instruction set.
REPACKED = ("q4_0", "q4_K", "q5_K", "q6_K", "q8_0", "q2_K", "iq4_nl", "mxfp4", "q1_0")

Counts = dict[str, dict[str, int]]


def layouts(kind: str, n_tokens: Iterable[int]) -> list[Shape]:
    """Return all four layouts of input and ids for 1 and 9 tokens, and one for each other number."""
    shapes = []
    for i, n in enumerate(n_tokens):
        for j in range(4):
            if n in (1, 9) or i % 4 == j:
                shapes.append(Shape(kind, n, broadcast=j % 2 == 0, strided=j >= 2))
    return shapes


N_TOKENS = (*range(1, 21), *range(23, 26), *range(31, 34), *range(47, 50), 63, 64)
"""Kernels change with the number of rows: at 4, 8 and 16, and at multiples of these."""


def python(*arguments: object, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, *map(str, arguments)], cwd=ROOT, capture_output=True, text=True, timeout=300,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


@pytest.fixture(scope="session")
def run(tmp_path_factory, reference_lib):
    def run(shapes: list[Shape], n_threads: int = 1, extra: bool = False, **environment: str) -> Counts:
        """Return counts of the patched library against the unpatched one, by buffer type, shape and mask."""
        folder = tmp_path_factory.mktemp("patches")
        job, results, counts = folder / "job.json", folder / "results.npz", folder / "counts.json"
        jobs = {"shapes": [asdict(s) for s in shapes], "n_threads": n_threads, "extra": extra}
        job.write_text(json.dumps(jobs))
        for arguments in (
            ["reference", reference_lib / "libllama.so", job, results],
            ["check", _library.library_path(), job, results, counts],
        ):
            python("-m", "tools.patches.worker", *arguments, **environment)
        return json.loads(counts.read_text())

    return run


@pytest.fixture(scope="session")
def plain(run):
    return run([shape for kind in KINDS for shape in layouts(kind, N_TOKENS)])


def check(counts: Counts, wanted: str = "") -> None:
    """Assert that all rows are right and that all of `wanted` was computed."""
    chosen = {key: count for key, count in counts.items() if wanted in key}
    assert chosen, f"nothing was computed for {wanted}"
    assert {key.split("|")[2] for key in chosen} == set(MASKS)
    assert not {key: count for key, count in chosen.items() if count["n_unequal"] or count["n_nonzero"]}
    for mask in MASKS:
        kept, skipped = (
            sum(count[n] for key, count in chosen.items() if key.endswith(f"|{mask}"))
            for n in ("n_kept", "n_skipped")
        )
        assert (kept > 0) == (mask != "all")
        assert (skipped > 0) == (mask != "none")


def test_the_types_are_all_there():
    program = "import sys; from tools.patches.ggml import Ggml; print(*Ggml(sys.argv[1]).types)"
    assert sorted(python("-c", program, _library.library_path()).split()) == sorted(KINDS)


def test_plain(plain):
    for kind in KINDS:
        check(plain, f"|{kind}/")


def test_tiled(run):
    """The tiled kernels are right for experts with few rows too. When forced, they run below eight rows."""
    shapes = [s for kind in TILED for s in layouts(kind, (1, 9, 64))]
    check(run(shapes, GGML_CPU_TILED_MM_FORCE="1"))


def test_repacked(run):
    counts = run([s for kind in REPACKED for s in layouts(kind, (1, 4, 9, 33))], extra=True)
    if not counts:
        pytest.skip("this CPU's kernels repack no weights")
    check(counts)


def test_threads(run):
    """One thread zeroes rows while others compute. All threads draw chunks of an expert."""
    kinds = ("f16", "q4_0", "q4_K", "q8_0")
    check(run([Shape(kind, n, n_out=160, n_used=4) for kind in kinds for n in (1, 33)], n_threads=2))


def test_a_wrong_result_would_be_noticed():
    """The comparison notices a changed bit, and a masked row that is not zero."""
    import numpy as np

    from tools.patches.operators import Count, masked

    shape = Shape("f32", 4)
    ids = masked(shape, "half")
    expected = np.ones((*ids.shape, 8), np.float32)
    right = np.where(ids[..., None] < 0, 0, expected).astype(np.float32)
    assert {mask for mask in BY_EXPERT if (masked(shape, mask) < 0).any()} == set(BY_EXPERT) - {"none"}
    for row, field in ((ids >= 0, "n_unequal"), (ids < 0, "n_nonzero")):
        count, wrong = Count(), right.copy()
        count.add(ids, [right], [expected])
        assert (count.n_unequal, count.n_nonzero) == (0, 0)
        wrong[tuple(np.argwhere(row)[0])][3] = np.nextafter(np.float32(1), np.float32(2))
        count.add(ids, [wrong], [expected])
        assert (count.n_unequal + count.n_nonzero, getattr(count, field)) == (1, 1)

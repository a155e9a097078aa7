"""CUDA's mul_mat_id of more than 8 tokens works where tensors stack many more experts than ids name,
as in pools of slots.

The results are the unpatched library's bits, both if all experts are walked and if only the named ones are.
The cards have multiprocessors that the tiles fill well or badly. The kernels are executed on the CPU
(tools/cuda_host/README.md).
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from tools.cuda_host.executed import CAPABILITY, kernels_folder
from tools.cuda_host.jobs import python, settings
from tools.patches.operators import MASKS, Shape

N = 300
# 1,024 inputs are four steps of a kernel, so a tile can be cut. The published mmq reads some kilobytes behind
# the last row. The card tolerates this only in the slack of a large buffer. Therefore there are so many rows,
# and each shape runs by itself.
SHAPES = (
    Shape("q4_0", 12, "mul_mat_id", False, False, n_used=7, n_expert=N, n_in=1024, n_out=64),
    Shape("q4_0", 33, "mul_mat_id", True, True, n_used=8, n_expert=N, n_in=1024, n_out=256),
    Shape("q4_K", 12, "mul_mat_id", True, False, n_used=8, n_expert=N, n_in=1024, n_out=128),
    Shape("q6_K", 9, "mul_mat_id", False, True, n_used=10, n_expert=N, n_in=1024, n_out=64),
    Shape("mxfp4", 11, "mul_mat_id", True, True, n_used=8, n_expert=N, n_in=1024, n_out=64),
    Shape("f16", 20, "mul_mat_id", False, True, n_used=3, n_expert=N, n_in=1024, n_out=64),  # by mmf
)
# With the last number, tiles of the smaller shapes are too few. They are cut, and all experts are walked.
MULTIPROCESSORS = (1, 20, 132)


def worker(package: Path, folder: Path, n_multiprocessors: int, *arguments: str | Path) -> None:
    report = folder / "report.json"
    card = settings(CC=CAPABILITY, EXECUTE=kernels_folder(), SM=n_multiprocessors, POISON=1, REPORT=report)
    done = python(package, "-m", "tools.patches.worker", *arguments, timeout_s=1200, **card)
    if "has no PTX" in done.stderr:
        pytest.skip("the CUDA build's kernels cannot be executed")
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    said = json.loads(report.read_text())
    assert said["misuse"] == {}
    assert any("mul_mat_q" in name or "mul_mat_f_ids" in name for name in said["kernels"])


@pytest.mark.parametrize("n_multiprocessors", MULTIPROCESSORS)
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_many_stacked_experts(
    package: Path, stock: Path, tmp_path: Path, shape: Shape, n_multiprocessors: int
) -> None:
    job, results, counts = tmp_path / "job.json", tmp_path / "results.npz", tmp_path / "counts.json"
    job.write_text(json.dumps({"shapes": [asdict(shape)], "n_threads": 1, "extra": False, "device": "CUDA0"}))
    ours, theirs = (folder / "libllama.so" for folder in (stock.parent, stock))
    worker(package, tmp_path, n_multiprocessors, "reference", theirs, job, results)
    worker(package, tmp_path, n_multiprocessors, "check", ours, job, results, counts)
    found = json.loads(counts.read_text())
    assert len(found) == len(MASKS)
    assert not {key: count for key, count in found.items() if count["n_unequal"] or count["n_nonzero"]}
    for mask, kept, skipped in (("none", True, False), ("rows", True, True), ("all", False, True)):
        (count,) = (count for key, count in found.items() if key.endswith(f"|{mask}"))
        assert (count["n_kept"] > 0, count["n_skipped"] > 0) == (kept, skipped)

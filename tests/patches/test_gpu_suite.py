"""A tiny run of bench/gpu_suite works with the CPU as the device."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from spac import _library

ROOT = Path(__file__).resolve().parents[2]


def run(tmp_path: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "bench.gpu_suite", tmp_path / "out", "--device", "CPU",
         "--work", tmp_path / "work", "--library", _library.library_path(),
         "--types", "q8_0", "--quick", *options],
        cwd=ROOT, capture_output=True, text=True, timeout=300,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip


def test_a_quick_run_on_the_cpu(tmp_path: Path) -> None:
    late = run(tmp_path, "--seconds", "0")
    assert late.returncode == 3, late.stdout + late.stderr
    done = run(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "PASSED\n" in (tmp_path / "out" / "patches.txt").read_text()
    results = json.loads((tmp_path / "out" / "patches.json").read_text())
    assert [(row["slots"], row["tokens"]) for row in results["cost"]] == [(16, 1), (16, 9), (32, 1), (32, 9)]
    (counts,) = results["types"]
    assert counts["n_shapes"] == 20
    assert counts["n_kept"] > 0
    assert counts["n_skipped"] > 0
    assert (counts["n_unequal"], counts["n_nonzero"], counts["failures"]) == (0, 0, [])
    again = run(tmp_path, "--seconds", "5")  # this run uses the files that the first run kept
    assert again.returncode == 0, again.stdout + again.stderr

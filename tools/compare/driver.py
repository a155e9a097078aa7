"""Start workers and compare their results."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tools.compare.job import Case, Difference, Job
from tools.compare.script import Logits

ROOT = Path(__file__).resolve().parents[2]
Start = Callable[[list[str], Mapping[str, str], float], subprocess.CompletedProcess[bytes]]


@dataclass(frozen=True, repr=False)  # otherwise a failing test would print every logit
class Result:
    """Logits by (case, run) and step, in the script's order, and the observations of the runs."""

    logits: dict[tuple[str, str], dict[str, Logits]]
    meta: dict[str, dict[str, Any]]


def reference_library() -> Path | None:
    """Return the folder of an unpatched libllama.so of the same pin, or None. The environment names it, or a
    build with -DSPAC_BUILD_REFERENCE=ON has put it beside spac's library."""
    # Imported late: a worker that imports this file for the reference must not import spac.
    from spac import _library

    named = os.environ.get("SPAC_REFERENCE_LIB")
    folder = Path(named) if named else _library.library_path().parent / "reference"
    return folder if (folder / "libllama.so").is_file() else None


def start_python(
    words: list[str], env: Mapping[str, str], timeout: float
) -> subprocess.CompletedProcess[bytes]:
    """Run the worker's program in a new Python."""
    command = [sys.executable, "-m", "tools.compare.worker", *words]
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, timeout=timeout, check=False)


def run_worker(
    library: str,
    job: Job,
    folder: Path,
    *,
    lib_path: Path | None = None,
    timeout: float = 300,
    environment: Mapping[str, str] | None = None,
    start: Start = start_python,
) -> Result:
    """Run a job in a process of its own, with files in `folder`. Library "reference" needs `lib_path`.
    `environment` is added to this process's. Its PYTHONPATH chooses the spac. `start` runs the program.

    Raise RuntimeError with the end of the worker's stderr when it fails or dies.
    """
    job_path, out_path = folder / f"{library}.json", folder / f"{library}.npz"
    job.write(job_path)
    env = {**os.environ, "OMP_WAIT_POLICY": "passive", **(environment or {})}
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), env.get("PYTHONPATH", "")]))
    env.pop("LLAMA_CPP_LIB_PATH", None)
    if lib_path is not None:
        env["LLAMA_CPP_LIB_PATH"] = str(lib_path)
    try:
        done = start([library, str(job_path), str(out_path)], env, timeout)
    except subprocess.TimeoutExpired as error:
        said = (error.stderr or b"").decode(errors="replace")
        raise RuntimeError(f"the {library} worker did not end in {timeout} s:\n{said[-4000:]}") from None
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace")
        raise RuntimeError(f"the {library} worker ended with {done.returncode}:\n{said[-4000:]}")
    return _read(out_path)


def _read(path: Path) -> Result:
    logits: dict[tuple[str, str], dict[str, Logits]] = {}
    with np.load(path) as arrays:
        for key in arrays.files:
            if key == "meta":
                meta = json.loads(str(arrays[key]))
                continue
            case, run, step = key.split("|")
            logits.setdefault((case, run), {})[step] = arrays[key]
    return Result(logits, meta)


def compare(case: Case, ours: Result, reference: Result) -> list[Difference]:
    """Return one `Difference` for every run of the case in `ours` that is not bit for bit the reference's
    first run."""
    expected = reference.logits[case.name, "reference"]
    differences = []
    for (name, run), steps in ours.logits.items():
        if name == case.name and (found := first_difference(name, run, steps, expected)):
            differences.append(found)
    return differences


def first_difference(
    case: str, run: str, steps: dict[str, Logits], expected: dict[str, Logits]
) -> Difference | None:
    """Return the first step with any bit different, or None."""
    if list(steps) != list(expected):
        raise ValueError(f"{case}, {run}: not the same script")
    for n_equal, (step, logits) in enumerate(steps.items()):
        wanted = expected[step]
        if logits.shape != wanted.shape:
            return Difference(case, run, step, -1, float("inf"), n_equal)
        # Comparing integers compares bits, and makes a NaN equal to itself.
        rows = np.flatnonzero((logits.view(np.uint32) != wanted.view(np.uint32)).any(axis=1))
        if len(rows):
            gap = np.abs(logits - wanted)
            largest = float(gap.max()) if np.isfinite(gap).all() else float("inf")
            return Difference(case, run, step, int(rows[0]), largest, n_equal)
    return None

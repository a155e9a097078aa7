"""Run llama.cpp's server tests in a process of their own, because they bring a conftest of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.serve.llama_cpp.sources import MODEL, TESTS

ROOT = Path(__file__).resolve().parents[3]


def run_own(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the tests in a folder that `sources.prepare` made. `words` are pytest's; without a path, all."""
    model = folder.parents[len(Path(TESTS).parts) - 1] / MODEL
    path = [str(ROOT), str(ROOT / "python"), os.environ.get("PYTHONPATH", "")]
    return subprocess.run(
        [
            sys.executable, "-m", "pytest", "--rootdir", str(folder), "-c", str(folder / "pytest.ini"), "-q",
            "-p", "no:cacheprovider", "-p", "tests.serve.llama_cpp.plugin", "-m", "not slow", *words,
        ],
        cwd=folder, text=True, timeout=3000,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path), "SPAC_TEST_MODEL": str(model)},
    )  # fmt: skip

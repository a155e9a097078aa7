"""Run llama.cpp's server tests: `python -m tests.serve.llama_cpp [pytest's words]`."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.serve.llama_cpp.own import run_own
from tests.serve.llama_cpp.sources import prepare

with tempfile.TemporaryDirectory() as folder:
    raise SystemExit(run_own(prepare(Path(folder)), *sys.argv[1:]).returncode)

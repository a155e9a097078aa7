"""Functions that run a program with Python, and with `spac exec`."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Outcome, environment

Run = Callable[..., Outcome]
EXEC = [sys.executable, "-m", "spac", "exec"]


def outcome(command: Sequence[object], cwd: Path, **extra: str) -> Outcome:
    done: Any = subprocess.run(
        [*map(str, command)], cwd=cwd, env=environment(**extra), capture_output=True, text=True, timeout=90
    )
    return Outcome(done.returncode, done.stdout, done.stderr)


@pytest.fixture
def run_python(tmp_path: Path) -> Run:
    """Return `run_python("app.py", …)`, which runs a program as Python does."""
    return lambda *words, **extra: outcome([sys.executable, *words], tmp_path, **extra)


@pytest.fixture
def run_exec(tmp_path: Path) -> Run:
    """Return `run_exec("--slots", 9, "app.py", …)`, which runs a program with `spac exec`."""
    return lambda *words, **extra: outcome([*EXEC, *words], tmp_path, **extra)

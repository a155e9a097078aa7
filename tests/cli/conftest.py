"""Fixtures that run `python -m spac.run` as a user does: another process, an exit code, two streams."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest

from tests.forked import TIMEOUT_S, Programs

ONE_THREAD = ("--threads", "1")  # llama.cpp's threads spin, which slows other work on the same cores a lot


@dataclass(frozen=True)
class Outcome:
    """Exit code and output of a run."""

    code: int
    out: str
    err: str

    @property
    def error(self) -> str:
        """Return the one line that a failing run may write."""
        lines = self.err.splitlines()
        assert len(lines) == 1, f"one line was promised, not:\n{self.err}"
        assert "Traceback" not in self.err
        return lines[0]

    @property
    def refusal(self) -> str:
        """Return the one line of a run that bad input has ended."""
        assert (self.code, self.out) == (2, "")
        return self.error

    @property
    def stats(self) -> dict[str, Any]:
        """Return the figures of a good run with --stats json."""
        assert self.code == 0, self.err
        return cast("dict[str, Any]", json.loads(self.err.splitlines()[-1]))


def environment(**extra: str) -> dict[str, str]:
    """Return this process's environment, changed so that threads do not spin while idle."""
    return {**os.environ, "OMP_WAIT_POLICY": "passive", **extra}


@pytest.fixture
def spac_run(tmp_path: Path, programs: Programs) -> Callable[..., Outcome]:
    """Return `spac_run("--temp", "0", stdin="text")`. It runs in a folder outside the source tree. With
    variables in `env`, Python starts anew: the library reads some of them when it is loaded."""

    def run(*arguments: object, stdin: str | None = None, env: Mapping[str, str] | None = None) -> Outcome:
        given = None if stdin is None else stdin.encode()
        words = [*ONE_THREAD, *map(str, arguments)]
        if env is None:
            done = programs.run("spac.run", words, tmp_path, environment(), given)
        else:
            done = subprocess.run(
                [sys.executable, "-m", "spac.run", *words],
                input=given or b"", capture_output=True, timeout=TIMEOUT_S, cwd=tmp_path,
                env=environment(**env),
            )  # fmt: skip
        return Outcome(done.returncode, done.stdout.decode(), done.stderr.decode())

    return run


@pytest.fixture(scope="session")
def target(tiny_model: Callable[..., Path]) -> Path:
    """Return a tiny target with 3 layers of 5 experts."""
    return tiny_model("qwen3moe")


@pytest.fixture(scope="session")
def draft(tiny_model: Callable[..., Path]) -> Path:
    """Return a dense draft with the target's vocabulary."""
    return tiny_model("qwen3", n_layer=1)

"""A child of fork() has none of the threads that work for a loaded engine. Using the engine is refused in one
line, and leaving it alone does no harm."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.conftest import ROOT


def run(case: str, path: Path) -> list[str]:
    """Return the lines that the case printed. It must end in time."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.together.forking", case, str(path)], cwd=ROOT, capture_output=True,
        env={**os.environ, "OMP_WAIT_POLICY": "passive"}, text=True, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def test_what_the_parent_loaded_is_refused(tiny_model):
    *answers, verdict, _ = run("use", tiny_model("qwen3moe"))
    assert verdict == "exit code 0, same text"
    assert len(answers) == 13
    for answer in answers:
        assert "InputError: the " in answer
        assert answer.endswith("was made in another process, before a fork: load the model anew in this one")


def test_a_child_may_leave_it_alone_or_become_another_program(tiny_model):
    assert run("leave", tiny_model("qwen3moe"))[0] == "exit code 0, same text"
    assert run("execute", tiny_model("qwen3moe"))[:2] == ["another program", "exit code 0, same text"]


def test_a_child_may_load_an_engine_of_its_own(tiny_model):
    *text, verdict, expected = run("anew", tiny_model("qwen3moe"))
    assert verdict == "exit code 0, same text"
    assert repr("\n".join(text)) == expected

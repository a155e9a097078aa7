"""spac runs without llama-cpp-python, and what needs it says what to install. Each program starts anew."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HIDDEN = """
from importlib.machinery import PathFinder

find = PathFinder.find_spec


def find_spec(cls, name, *others):
    return None if name.partition(".")[0] == "llama_cpp" else find(name, *others)


PathFinder.find_spec = classmethod(find_spec)
"""
"""The code of a sitecustomize after which Python finds no llama_cpp, in child processes too."""
MISSING = "llama-cpp-python is not installed: run `CMAKE_ARGS=-DLLAMA_BUILD=OFF pip install"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("without")
    (made / "sitecustomize.py").write_text(HIDDEN)
    return made


def start(folder: Path, *words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH", "")]))
    return subprocess.run(
        [sys.executable, *words], input=stdin, capture_output=True, text=True, timeout=100,
        env={**os.environ, "PYTHONPATH": path}, check=False,
    )  # fmt: skip


def test_run_and_chat(folder: Path) -> None:
    done = start(folder, "-m", "spac.run", "-n", "8", "--temp", "0", "--json-schema", "{}", "--quiet")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    done = start(folder, "-m", "spac", "chat", "-n", "8", "--quiet", "--no-markdown", stdin="hello\n")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_doctor(folder: Path) -> None:
    done = start(folder, "-m", "spac", "doctor", "--json")
    assert done.returncode == 0, done.stderr
    found = {finding["name"]: finding for finding in json.loads(done.stdout)["findings"]}
    assert found["demo"]["state"] == "ok"
    assert found["llama-cpp-python"]["state"] == "off"
    assert MISSING in found["llama-cpp-python"]["why"]


def test_the_program_that_needs_it_says_so(folder: Path) -> None:
    done = start(folder, "-m", "spac", "exec", "-m", "json.tool")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith(f"spac exec: error: {MISSING}"), done.stderr


@pytest.mark.parametrize("name", ["Llama('x.gguf')", "enable()"])
def test_names_that_need_it_say_so(folder: Path, name: str) -> None:
    done = start(folder, "-c", f"import spac; spac.{name}")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(f"ImportError: {MISSING}"), done.stderr

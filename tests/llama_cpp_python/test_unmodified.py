"""An app of llama-cpp-python's kind gives the same answers on stock llama.cpp and with the split."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.llama_cpp_python.conftest import DRAFT, TARGET

ROOT = Path(__file__).resolve().parents[2]
APP = Path(__file__).with_name("readme_app.py")
ENABLED = f"""
import runpy, sys
{{first}}
import spac
spac.enable({{options}})
sys.argv = ["app", {str(TARGET)!r}]
runpy.run_path({str(APP)!r}, run_name="__main__")
"""

Answers = dict[str, Any]


def python(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(ROOT / "python"), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, *command], env={**os.environ, "PYTHONPATH": path, **environment},
        capture_output=True, text=True, timeout=90,
    )  # fmt: skip


def run(*command: str, **environment: str) -> Answers:
    done = python(*command, **environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def stock(reference_lib):
    """Return the app's answers on the unpatched library, from a process that does not import spac."""
    answers = run(str(APP), str(TARGET), LLAMA_CPP_LIB_PATH=str(reference_lib))
    assert answers["kind"] == "llama_cpp.llama"
    return answers


OPTIONS = {
    "no speculation": ("slots='25%'", ""),
    "a draft model": (f"slots='25%', draft={str(DRAFT)!r}, draft_length=4", ""),
    # The app may have the class before `enable()`, on spac's library.
    "n-grams": (
        "slots=10, draft_type='ngram-simple', draft_length=6, scheduler='moe-spac'",
        "import spac; from llama_cpp import Llama",
    ),
}


@pytest.mark.parametrize(("options", "first"), OPTIONS.values(), ids=OPTIONS)
def test_same_answers_as_stock(stock, options, first):
    answers = run("-c", ENABLED.format(options=options, first=first))
    assert answers["kind"] == "spac.llama_cpp_python.llama"
    assert answers | {"kind": stock["kind"]} == stock


def test_the_answers_are_not_empty(stock):
    assert len(stock["completion"][0]["text"]) > 50
    assert stock["completion"][0]["text"] != stock["stopped"][0]["text"]
    assert json.loads(stock["json"][0]["message"]["content"]).keys() == {"team", "open"}
    assert stock["function"]["name"] == "UserDetail"
    assert json.loads(stock["function"]["arguments"])["team"] in ("red", "blue")
    assert len(stock["logprobs"][0]["logprobs"]["tokens"]) > 6


def test_llama_cpp_on_another_library(reference_lib):
    code = "import llama_cpp, spac; spac.enable()"
    done = python("-c", code, LLAMA_CPP_LIB_PATH=str(reference_lib))
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert "ImportError: llama_cpp is already loaded on" in last
    assert "import spac before llama_cpp" in last


def test_importing_spac_loads_nothing():
    code = "import json, sys, spac; print(json.dumps({name: name in sys.modules for name in sys.argv[1:]}))"
    names = ["llama_cpp", "numpy", "spac._core"]
    assert run("-c", code, *names) == dict.fromkeys(names, False)

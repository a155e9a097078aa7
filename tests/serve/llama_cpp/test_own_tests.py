"""A part of llama.cpp's own server tests passes on `spac serve`.

CONTRIBUTING tells how to run all of them.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.serve.llama_cpp.listed import LISTED
from tests.serve.llama_cpp.own import run_own
from tests.serve.llama_cpp.sources import prepare
from tools.patches.source import sdist

PART = ("basic", "ignore_eos", "metrics", "security", "tokenize")
"""The files of tests that the suite runs; each test starts a server."""
LEAST = 25
"""The number of tests that pass at least."""


@pytest.mark.skipif(sdist() is None, reason="the sdist of the pin is not in the cache")
def test_a_part_of_llama_cpps_own_tests_passes(tmp_path: Path) -> None:
    done = run_own(prepare(tmp_path), *(f"unit/test_{name}.py" for name in PART), capture=True)
    assert done.returncode == 0, done.stdout + done.stderr
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None
    assert int(passed[1]) >= LEAST, done.stdout


def test_each_listed_test_has_one_reason() -> None:
    patterns = [pattern for each in LISTED.values() for pattern in each]
    assert len(patterns) == len(set(patterns))

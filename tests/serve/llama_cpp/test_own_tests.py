"""llama.cpp's own server tests run in .ci/run; this one looks at the list of those that do not apply."""

from __future__ import annotations

from tests.serve.llama_cpp.listed import LISTED


def test_each_listed_test_has_one_reason():
    patterns = [pattern for each in LISTED.values() for pattern in each]
    assert len(patterns) == len(set(patterns))

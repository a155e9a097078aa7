"""Costs are kept per machine, models and library."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest

from spac.costs import cache
from spac.errors import InputError
from tests.costs.machine import costs

KEY = cache.Key("a processor", 4, "CUDA0", "1-aa", "none", "0.1.0")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of the cache, which belongs to the test alone."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "spac" / "costs"


def test_what_was_stored_is_loaded_for_the_same_key_only():
    assert cache.load(KEY) is None
    cache.store(KEY, costs())
    assert cache.load(KEY) == costs()
    for field in dataclasses.fields(KEY):
        other = 5 if field.name == "threads" else "another"
        assert cache.load(dataclasses.replace(KEY, **{field.name: other})) is None


@pytest.mark.parametrize("content", ["", "{", "[]", "null", '{"key": {}}', "\udcff", "[" * 200_000])
def test_a_damaged_file_is_no_file(content):
    cache.store(KEY, costs())
    KEY.path.write_bytes(content.encode("utf-8", "surrogateescape"))
    assert cache.load(KEY) is None
    cache.store(KEY, costs())
    assert cache.load(KEY) == costs()


def test_a_pipe_in_the_cache_holds_nobody_up(folder):
    folder.mkdir(parents=True)
    os.mkfifo(KEY.path)
    assert cache.load(KEY) is None
    with pytest.raises(InputError, match="cannot be written"):
        cache.store(KEY, costs())


def test_a_folder_that_cannot_be_written_is_one_line(folder):
    folder.parent.mkdir(parents=True)
    folder.write_text("a file")
    for act in (lambda: cache.check(KEY), lambda: cache.store(KEY, costs())):
        with pytest.raises(InputError) as refused:
            act()
        assert "\n" not in str(refused.value)


def test_a_fingerprint_sees_both_ends_and_the_size(tmp_path):
    path, seen = tmp_path / "model", set()
    for content in (
        b"a" * 3_000_000,
        b"b" + b"a" * 2_999_999,
        b"a" * 2_999_999 + b"b",
        b"a" * 3_000_001,
        b"",
    ):
        path.write_bytes(content)
        seen.add(cache.fingerprint(path))
    assert len(seen) == 5
    with pytest.raises(InputError, match="cannot be read"):
        cache.fingerprint(tmp_path / "nothing")

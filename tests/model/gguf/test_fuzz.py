"""The check of a file with any bytes ends with a description or with one line, soon and in little memory."""

from __future__ import annotations

import re
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spac.errors import InputError
from spac.model.gguf.check import ModelInfo, check_model
from spac.model.gguf.header import read_header

FUZZ = settings(
    max_examples=100,
    deadline=2000,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
# Values of lengths, counts and types that often cause errors.
EVIL = st.sampled_from(
    [b"\0" * 8, b"\xff" * 8, b"\xff\xff\xff\x7f" + b"\0" * 4, b"\1" + b"\0" * 7, b"\0" * 7 + b"\x40"]
)
EDIT = st.tuples(st.integers(0, 1 << 30), st.one_of(st.binary(min_size=1, max_size=4), EVIL))


@pytest.fixture(scope="module")
def headers(tiny_model):
    """Return header and file size of a few models. The check does not need the data."""
    paths = [tiny_model(family, n_layer=2) for family in ("qwen3moe", "deepseek2", "gpt-oss")]
    return [(path.read_bytes()[: read_header(path).data_offset], path.stat().st_size) for path in paths]


def outcome(path: Path) -> ModelInfo | str:
    try:
        return check_model(path)
    except InputError as error:
        line = str(error)
    assert re.fullmatch(r"[^\n]+: [^\n]+; [^\n]+", line), line
    return line


def write(path: Path, header: bytes, size: int) -> Path:
    with path.open("wb") as file:
        file.write(header)
        file.truncate(size)  # a hole takes the place of the data
    return path


@FUZZ
@given(which=st.integers(0, 2), edits=st.lists(EDIT, min_size=1, max_size=4))
def test_changed_bytes(which, edits, headers, tmp_path):
    header, size = headers[which]
    content = bytearray(header)
    for at, data in edits:
        at %= len(content)
        content[at : at + len(data)] = data[: len(content) - at]
    outcome(write(tmp_path / "changed.gguf", bytes(content), size))


@FUZZ
@given(which=st.integers(0, 2), at=st.integers(0, 1 << 30))
def test_cut_off_anywhere(which, at, headers, tmp_path):
    header, _ = headers[which]
    cut = at % len(header)
    assert isinstance(outcome(write(tmp_path / "cut.gguf", header[:cut], cut)), str)


@FUZZ
@given(which=st.integers(0, 2), at=st.integers(0, 1 << 30), data=st.binary(max_size=64), n=st.integers(0, 64))
def test_bytes_put_in_or_taken_out(which, at, data, n, headers, tmp_path):
    header, size = headers[which]
    at %= len(header)
    outcome(write(tmp_path / "shifted.gguf", header[:at] + data + header[at + n :], size))


def test_memory_is_bounded_by_the_file(headers, tmp_path):
    """Every 8 bytes in turn become a huge number. No memory is allocated only because a file says so."""
    header, size = headers[0]
    tracemalloc.start()
    for at in range(0, len(header) - 8, 97):
        content = header[:at] + b"\xff\xff\xff\xff\xff\0\0\0" + header[at + 8 :]
        outcome(write(tmp_path / "huge.gguf", content, size))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 16 << 20

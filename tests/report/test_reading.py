"""A file that is no recording, or is damaged, is refused in one line."""

from __future__ import annotations

import json
import re
import zipfile

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spac.errors import InputError
from spac.report.figures import read
from tests.report.conftest import spac

KEPT = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@KEPT
@given(share=st.floats(0, 0.9999), bits=st.integers(1, 255))
def test_whatever_is_changed_it_is_refused_or_harmless(recorded, content, share, bits):
    """The archive has checksums. A change of the demand's arrays does not reach the page."""
    data = bytearray(recorded.read_bytes())
    data[int(share * len(data))] ^= bits
    path = recorded.parent / "changed.npz"
    path.write_bytes(data)
    refused = ""
    try:
        found = read(str(path)).content
    except InputError as error:
        refused = str(error)
    assert refused.startswith(str(path)) if refused else found == content
    assert "\n" not in refused


@KEPT
@given(share=st.floats(0, 0.9999))
def test_a_file_that_breaks_off(recorded, share):
    data = recorded.read_bytes()
    path = recorded.parent / "part.npz"
    path.write_bytes(data[: int(share * len(data))])
    with pytest.raises(InputError, match=r"part\.npz is not a recording"):
        read(str(path))


@pytest.mark.parametrize(
    ("report", "why"),
    [
        ("hello", "bad.npz: cannot be read"),
        ("[1, 2]", "bad.npz is not a recording"),
        ('{"schema": 1, "tokens_per_second": 3}', "bad.npz is not a recording"),
        ('{"format": "spac-recording", "schema": 99}', "bad.npz is a recording of schema 99"),
    ],
)
def test_what_is_no_recording(report, why, tmp_path):
    with zipfile.ZipFile(tmp_path / "bad.npz", "w") as file:
        file.writestr("report.json", report)
    with pytest.raises(InputError, match=re.escape(why)):
        read(str(tmp_path / "bad.npz"))


def test_the_program_says_so_in_one_line(tmp_path):
    (tmp_path / "bad.npz").write_text(json.dumps({"format": "spac-recording", "schema": 1}))
    for name, why in (("bad.npz", "is not a recording"), ("no.npz", "No such file"), (".", "directory")):
        done = spac("report", name, cwd=tmp_path)
        assert done.code == 2
        assert done.out == b""
        assert len(done.err.splitlines()) == 1
        assert why in done.err
        assert name in done.err
    assert [path.name for path in tmp_path.iterdir()] == ["bad.npz"]

"""A file that is no recording is refused in one line. An accepted one makes a page."""

from __future__ import annotations

import copy
import json
import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spac.errors import InputError
from spac.report.page import page
from spac.report.reading import parse
from tests.report.conftest import spac

KEPT = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
NUMBERS = st.integers(-(2**70), 2**70) | st.floats(allow_nan=False)
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(max_size=5),
    lambda values: st.lists(values, max_size=3) | st.dictionaries(st.text(max_size=5), values, max_size=3),
    max_leaves=5,
)


def places(value, path=()):
    """Yield the path to every part, down to the first two items of every list."""
    yield path
    if isinstance(value, dict):
        for key in value:
            yield from places(value[key], (*path, key))
    elif isinstance(value, list):
        for i in range(min(2, len(value))):
            yield from places(value[i], (*path, i))


def changed(content, path, value, remove):
    content = copy.deepcopy(content)
    *way, last = path
    parent = content
    for key in way:
        parent = parent[key]
    if remove:
        del parent[last]
    else:
        parent[last] = value
    return content


@KEPT
@given(data=st.data())
def test_whatever_is_changed_it_is_refused_or_shown(content, data):
    path = data.draw(st.sampled_from(list(places(content))[1:]))
    remove, value = data.draw(st.booleans()), data.draw(JSON)
    text = json.dumps(changed(content, path, value, remove)).encode()
    refused = None
    try:
        recording = parse(text, "a.json")
    except InputError as error:
        refused = str(error)
    if refused is None:
        assert page(recording).rstrip().endswith("</html>")
    else:
        assert refused.startswith("a.json ")
        assert "\n" not in refused


@KEPT
@given(share=st.floats(0, 0.9999))
def test_a_file_that_breaks_off(recorded, share):
    data = recorded.read_bytes().rstrip()
    with pytest.raises(InputError, match=r"only the beginning|is empty"):
        parse(data[: int(share * len(data))], "a.json")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "is empty"),
        ("hello", "not valid JSON"),
        ("[1, 2]", "not a recording"),
        ('{"schema": 1, "tokens_per_second": 3}', "not a recording"),
        ('{"format": "spac-recording", "schema": 99}', "schema 99"),
        ('{"format": "spac-recording", "schema": 1}', "started"),
        ('{"format": "spac-recording", "schema": NaN}', "NaN"),
        ("[" * 100000, "not valid JSON"),
    ],
)
def test_what_is_no_recording(text, why, tmp_path):
    (tmp_path / "bad.json").write_text(text)
    with pytest.raises(InputError, match=re.escape(why)) as caught:
        parse(text.encode(), "bad.json")
    assert "bad.json" in str(caught.value)


def test_the_program_says_so_in_one_line(tmp_path):
    (tmp_path / "bad.json").write_text("{")
    for name, why in (("bad.json", "not valid JSON"), ("missing.json", "No such file"), (".", "directory")):
        done = spac("report", name, cwd=tmp_path)
        assert done.code == 2
        assert done.out == b""
        assert len(done.err.splitlines()) == 1
        assert why in done.err
        assert name in done.err
    assert [path.name for path in tmp_path.iterdir()] == ["bad.json"]


@pytest.mark.parametrize("part", ["demand", "resident", "arrivals"])
@pytest.mark.parametrize("value", ["", "AAAA", "no base64!", None, 7, [1]])
def test_matrices_of_another_shape(content, part, value):
    content["experts"][part] = value
    with pytest.raises(InputError, match=f"experts.{part}"):
        parse(json.dumps(content).encode(), "a.json")


def test_columns_of_another_length(content):
    content["steps"]["columns"]["uploads"].pop()
    with pytest.raises(InputError, match=r"steps\.uploads"):
        parse(json.dumps(content).encode(), "a.json")

"""The tour names files and functions that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOUR = (ROOT / "docs" / "internals" / "tour.md").read_text(encoding="utf-8")
ITEM = re.compile(r"^- `([\w/.]+)`: (.*(?:\n  .*)*)", re.MULTILINE)
"""A file and what is said of it."""
SPAN = re.compile(r"`([^`]+)`")


def stops(text):
    """Return the files of each stop, with the names that its items give for them."""
    sections = re.split(r"^## \d+\. ", text, flags=re.MULTILINE)[1:]
    return [[(file, SPAN.findall(about)) for file, about in ITEM.findall(each)] for each in sections]


def names_of(node, prefix=""):
    """Return the functions, classes and methods below a node of a Python file."""
    found = set()
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found |= {prefix + child.name, *names_of(child, f"{prefix}{child.name}.")}
    return found


def has(file, name):
    """Return True if a file defines a name, or, in C++, writes it as a class or with an argument list."""
    text = (ROOT / file).read_text(encoding="utf-8")
    if file.endswith(".py"):
        return name in names_of(ast.parse(text))
    return re.search(rf"(?<![\w:]){re.escape(name)}(::|\(|>\()", text) is not None


NAMED = [(file, name) for stop in stops(TOUR) for file, names in stop for name in names]


def test_it_has_ten_stops():
    assert len(stops(TOUR)) == 10
    assert all(1 < len(stop) < 9 for stop in stops(TOUR))
    assert all(names for stop in stops(TOUR) for _, names in stop)


@pytest.mark.parametrize(("file", "name"), NAMED)
def test_every_name_is_in_its_file(file, name):
    assert has(file, name)


def test_it_names_nothing_outside_its_lists():
    """Other code in the page is the command of the walk, and names that a list has too."""
    rest = set(SPAN.findall(ITEM.sub("", TOUR)))
    assert rest - {name for _, name in NAMED} == {"python -m spac run"}


def test_what_is_gone_is_noticed():
    assert has("python/spac/run.py", "Run.run")
    assert not has("python/spac/run.py", "Run.walk")
    assert not has("python/spac/run.py", "read_config")  # it is used there, and defined elsewhere
    assert has("csrc/core/residency.cpp", "Residency::choose")
    assert not has("csrc/core/residency.cpp", "Residency::chose")
    with pytest.raises(FileNotFoundError):
        has("csrc/core/none_such.cpp", "choose")

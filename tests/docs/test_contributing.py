"""CONTRIBUTING.md names files and tests that exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


def rows(text):
    """Return the cells of each row of the map."""
    [table] = re.findall(r"^\| to change \|.*\n\| ---.*\n((?:\|.*\n)+)", text, re.MULTILINE)
    return [[re.findall(r"`([^`]+)`", cell) for cell in row[1:-1].split("|")] for row in table.splitlines()]


def test_every_row_of_the_map_has_three_files_and_a_test():
    assert len(rows(TEXT)) >= 12
    for _, files, tests in rows(TEXT):
        assert len(files) == len(set(files)) == 3
        assert tests
        assert not [name for name in files if not (ROOT / name).is_file()]
        assert not [name for name in tests if not name.startswith("tests/") or not (ROOT / name).exists()]


def test_every_path_of_the_page_exists():
    made = ("build/", ".venv/")
    text = re.sub(r"^```.*?^```", "", TEXT, flags=re.DOTALL | re.MULTILINE)
    named = {word for span in re.findall(r"`([^`]+)`", text) for word in span.split()}
    paths = {word for word in named if re.fullmatch(r"[\w.]+(/[\w.]+)*/?", word) and "/" in word}
    assert len(paths) > 40
    assert not [path for path in paths if not path.startswith(made) and not (ROOT / path).exists()]


def test_every_module_of_the_page_exists():
    modules = set(re.findall(r"python -m ((?:tests|tools|bench)[\w.]*)", TEXT))
    assert len(modules) > 4
    places = {module: ROOT / module.replace(".", "/") for module in modules}
    assert not [name for name, at in places.items() if not (at.with_suffix(".py").is_file() or at.is_dir())]


def test_the_first_check_names_tests():
    [command] = re.findall(r"^\.venv/bin/python -m pytest -n 2 (tests/.*)$", TEXT, re.MULTILINE)
    assert not [name for name in shlex.split(command) if not (ROOT / name).exists()]

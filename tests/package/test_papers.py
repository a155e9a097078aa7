"""The page of the papers names files, tests and results that exist, for every row that is not open."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "internals" / "papers.md").read_text(encoding="utf-8")
TABLES = re.findall(r"^\| in the paper .*\n\| --- .*\n((?:\|.*\n)+)", PAGE, re.MULTILINE)
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")] for table in TABLES for line in table.splitlines()
]


def named(cell: str, roots: tuple[str, ...]) -> list[tuple[str, bool]]:
    """Return the paths and modules that a cell names, and whether there is one of these names."""
    found = []
    for word in re.findall(r"`([^`]+)`", cell):
        name = word.split()[0]
        if name.startswith("bench."):
            name = name.replace(".", "/")
        if "/" in name or name.endswith((".py", ".txt", ".md", ".json", ".png")):
            found.append((word, any(any((ROOT / root).glob(f"{name}*")) for root in roots)))
    return found


def missing(column: int, *roots: str) -> list[str]:
    return [word for row in ROWS for word, there in named(row[column], roots) if not there]


def test_every_row_says_something_and_names_what_there_is():
    assert len(ROWS) > 50
    assert all(len(row) == 5 for row in ROWS)
    assert not missing(1, "python/spac", "python/spac/papers", ".")
    assert not missing(2, "tests")
    assert not missing(3, "bench/results")
    assert named("`bench.nothing`, `scheduler/none_such.py`", ("python/spac", ".")) == [
        ("bench.nothing", False), ("scheduler/none_such.py", False),
    ]  # fmt: skip


def test_rows_without_code_say_why():
    for row in ROWS:
        assert row[1] or re.search(r"open|Not here|Not needed", row[4], re.IGNORECASE), row[0]

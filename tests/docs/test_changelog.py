"""The changelog has dated versions, the newest first, and entries of one line."""

from __future__ import annotations

import re
from datetime import date
from pathlib import Path

import spac

LINES = (Path(__file__).resolve().parents[2] / "CHANGELOG.md").read_text(encoding="utf-8").splitlines()
VERSIONS = [line for line in LINES if line.startswith("## ")]


def test_versions_are_dated_and_the_newest_is_first():
    first, *others = VERSIONS
    assert first == "## Unreleased"
    found = [re.fullmatch(r"## (\d+\.\d+\.\d+) \((\S+)\)", line).groups() for line in others]
    numbers = [[int(part) for part in version.split(".")] for version, _ in found]
    dates = [date.fromisoformat(day) for _, day in found]
    assert numbers == sorted(numbers, reverse=True)
    assert dates == sorted(dates, reverse=True)
    assert found[0][0] == spac.__version__


def test_entries_are_of_one_line_and_in_groups():
    groups = [line for line in LINES if line.startswith("### ")]
    assert set(groups) <= {"### Added", "### Changed", "### Fixed", "### Removed"}
    entries = [i for i, line in enumerate(LINES) if line.startswith("- ")]
    assert len(entries) > 50
    assert not [LINES[i] for i in entries if len(LINES[i]) > 120]
    assert not [LINES[i] for i in entries if i + 1 < len(LINES) and LINES[i + 1].startswith("  ")]

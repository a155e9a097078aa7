"""What README.md says of options and figures is what there is."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

from spac.run import make_parser
from spac.stats import RunStats

README = (Path(__file__).resolve().parents[2] / "README.md").read_text()
SECTION = README[README.index("## Running a model") : README.index("## The installation")]


def cells(section):
    """First cells of a section's table."""
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| ") and "`" in line]
    assert rows
    return rows


def test_every_option_of_the_table_exists():
    known = {flag for action in make_parser()._actions for flag in action.option_strings}
    named = set(
        re.findall(r"(?<![\w-])--?[a-z][\w-]*", " ".join(cells(SECTION[: SECTION.index("### The figures")])))
    )
    assert named <= known, named - known
    assert {
        "--target",
        "--draft",
        "--slots",
        "--scheduler",
        "--device",
        "--temp",
        "--stats",
        "--seed",
    } <= named


def test_every_figure_is_in_the_table():
    named = set(re.findall(r"`(\w+)`", " ".join(cells(SECTION[SECTION.index("### The figures") :]))))
    fields = {item.name for item in dataclasses.fields(RunStats)}
    assert named == fields - {"schema"}

"""The product does not grow unnoticed: product_lines.txt has the number of lines that were agreed.

The number is raised only with a line in CHANGELOG that says what the lines buy: "Product lines: NUMBER".
After a cut, it is lowered.
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SUFFIXES = {".py", ".pyi", ".cpp", ".h", ".cu", ".js", ".css", ".html"}
MOST = int((ROOT / "tests" / "package" / "product_lines.txt").read_text())
SLACK = 500


def product_lines() -> int:
    files = [
        path
        for folder in (ROOT / "python" / "spac", ROOT / "csrc")
        for path in folder.rglob("*")
        if path.suffix in SUFFIXES
        and path.is_file()
        and (ROOT / "python" / "spac" / "lib") not in path.parents
    ]
    return sum(len(path.read_bytes().splitlines()) for path in files)


def test_the_product_has_no_more_lines_than_were_agreed() -> None:
    lines = product_lines()
    assert lines <= MOST, f"{lines} lines: remove some, or say in CHANGELOG what they buy and raise {MOST}"
    assert lines > MOST - SLACK, f"{lines} lines: lower {MOST} in product_lines.txt, so that the cut lasts"


def test_the_changelog_says_what_the_lines_buy() -> None:
    said = re.findall(r"Product lines: ([\d,]+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"))
    assert int(said[0].replace(",", "")) == MOST

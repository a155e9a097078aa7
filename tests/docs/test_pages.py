"""The pages of docs/ are in its table of contents, and those that code names exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
FOLDERS = ("bench", "cmake", "csrc", "examples", "patches", "python/spac", "tests", "tools", ".github")
SUFFIXES = {".cpp", ".h", ".js", ".md", ".py", ".txt", ".yml"}


def test_the_table_of_contents_has_every_page():
    linked = set(re.findall(r"\]\(([\w/-]+\.md)\)", (DOCS / "index.md").read_text(encoding="utf-8")))
    assert linked == {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")} - {"index.md"}


def test_pages_that_code_names_exist():
    named = {
        (str(path.relative_to(ROOT)), page)
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*")
        if path.suffix in SUFFIXES and path.is_file() and "lib" not in path.relative_to(ROOT).parts
        for page in re.findall(r"(?<![\w/])docs/[\w/-]+\.md", path.read_text(encoding="utf-8"))
    }
    assert len(named) > 10
    assert not [(path, page) for path, page in named if not (ROOT / page).is_file()]

"""The table of cards is that of the files. tests/cli/test_bench.py makes a file that gives a row."""

from __future__ import annotations

from bench import __main__ as runner
from bench import cards


def test_the_page_has_the_files_table() -> None:
    assert runner.main(["cards", "--check"]) == 0
    found = cards.cards()
    assert found
    assert all(len(cards.row(each)) == len(cards.HEAD) for each in found)
    assert cards.PAGE.read_text().count("| NVIDIA H100") == 1

"""The table of cards is that of the files, and a file of `spac bench --submit` gives a row."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import __main__ as runner
from bench import cards
from bench.page import table
from spac.bench import main, submission


def test_the_page_has_the_files_table() -> None:
    assert runner.main(["cards", "--check"]) == 0
    found = cards.cards()
    assert found
    assert all(len(cards.row(each)) == len(cards.HEAD) for each in found)
    assert cards.PAGE.read_text().count("| NVIDIA H100") == 1


@pytest.mark.parametrize("device", ["simulated", "cpu"])
def test_a_file_that_was_sent_in_gives_a_row(
    tmp_path: Path, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submission, "TEXT_TOKENS", 8)
    monkeypatch.setattr(submission, "PROMPT_TOKENS", 64)
    path = tmp_path / "card.json"
    assert main(["--device", device, "--submit", str(path), "--quiet"]) == 0
    card = json.loads(path.read_text())
    cells = dict(zip(cards.HEAD, cards.row(card), strict=True))
    assert cells["model"].startswith("qwen3moe, 32 experts, 0.0 GB, Q8_0")
    assert f"{card['ratio']['median']:.2f}" in cells["ratio"]
    assert cells["card"] == "no GPU"
    text = cards.page_with(
        f"before\n{cards.BEGIN}\nold\n{cards.END}\nafter\n", table(cards.HEAD, [cards.row(card)])
    )
    assert text.startswith("before\n")
    assert text.endswith(f"{cards.END}\nafter\n")
    assert "old" not in text

"""The benchmark of perplexities compares every form with the unpatched library."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench import perplexity
from bench.__main__ import main
from spac import demo

SMALL = [str(demo.TARGET), "--pieces", "1", "--schedulers", "lru"]


@pytest.mark.usefixtures("reference_lib")
def test_every_form_has_a_line(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    assert main(["perplexity", *SMALL, "--used", "1", "--dense", str(demo.DRAFT), "--out", str(page)]) == 0
    assert "7 of 7 equal the unpatched library's." in page.read_text()
    figures = json.loads(page.with_suffix(".json").read_text())["figures"]
    rows = {name: (value, mixed) for name, value, mixed in figures}
    assert len(rows) == 1 + 7 + 2
    assert rows["25%, lru"][1] == "100%"
    assert rows["1 experts per token"][0] > rows["25%, lru"][0] * 1.2


def found(_path: Path, _n: int, slots: str = "", **_options: Any) -> tuple[float, str, list[list[int]]]:
    return 12.00001 if slots == "10%" else 12.0, "", []


def test_another_perplexity_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(perplexity, "ours", found)
    monkeypatch.setattr(perplexity, "theirs", lambda *_: 12.0)
    assert main(["perplexity", *SMALL]) == 1
    assert "6 of 7 equal" in capsys.readouterr().out


def test_without_the_unpatched_library(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(perplexity, "ours", found)
    monkeypatch.setattr(perplexity, "reference_library", lambda: None)
    assert main(["perplexity", *SMALL]) == 2
    assert "SPAC_REFERENCE_LIB" in capsys.readouterr().err

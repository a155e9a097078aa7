"""The benchmark of hostile grammars has the times of all clients, alone and beside others."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path

import pytest

from bench.hostile import HOSTILE, KINDS, run


def test_the_page_has_a_row_for_each_kind_of_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(HOSTILE) == 12
    for name, others in KINDS.items():
        monkeypatch.setitem(KINDS, name, others[:3])
    run(Namespace(requests=1, tokens=4, parallel=-1, out=tmp_path / "page.md"))
    figures = json.loads((tmp_path / "page.json").read_text())["figures"]
    page = (tmp_path / "page.md").read_text()
    for name in KINDS:
        assert len(figures[name]) == 8
        assert f"| {name} | " in page

"""The policy's time is measured for every scheduler and number of experts."""

from __future__ import annotations

import json

from bench import policy
from bench.__main__ import main


def test_every_cell_has_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr(policy, "OTHER_BYTES", 1 << 10)
    words = ["--layers", "3", "--experts", "12", "20", "--used", "2", "--cold"]
    words += ["--schedulers", "lru", "logistic"]
    assert main(["policy", *words, "--out", str(tmp_path / "page.md")]) == 0
    figures = json.loads((tmp_path / "page.json").read_text())["figures"]
    assert {name: len(times) for name, times in figures.items()} == {"lru": 2, "logistic": 2}
    assert all(each > 0 for times in figures.values() for each in times)
    assert "| µs a step | 3 × 12 | 3 × 20 |" in (tmp_path / "page.md").read_text()


def test_views_are_what_a_verification_shows():
    start, *steps = policy.views(3, 12, 2, 4)
    assert len(steps) == policy.STEPS
    for view in steps:
        assert view.demand.sum() == view.routes.size == 3 * 4 * 2
        assert view.routes.shape == (3, 4, 2)
    assert not start.demand.any()

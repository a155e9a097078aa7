"""`bench.misses` runs every way in turns, and its figures tell where the misses were computed."""

from __future__ import annotations

import json

from bench import misses


def test_the_ways_take_turns_and_are_compared(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(misses, "COMPARED", misses.WARM + 4)
    out = tmp_path / "figures.json"
    misses.main([
        "--layers", "2", "--width", "512", "--links", "25", "--windows", "1", "--schedulers", "lru",
        "--ways", "cpu", "cpu again", "load", "--steps", "4", "--repeats", "2", "--out", str(out),
    ])  # fmt: skip
    figures = json.loads(out.read_text())
    (row,) = figures["rows"]
    assert row["cpu"]["to_cpu"] == row["cpu"]["low"] == row["cpu"]["high"] == 1
    assert [row[way]["loaded"] for way in ("cpu", "cpu again")] == [0, 0]
    assert row["load"]["loaded"] > 0  # a slot that is read cannot be taken
    for way in ("cpu again", "load"):
        assert 0 < row[way]["low"] <= row[way]["to_cpu"] <= row[way]["high"]
        assert row[way]["low"] < row[way]["high"]  # the ways were measured apart
        assert len(row[way]["ratios"]) == 2
        assert figures["all"][way]["to_cpu"] == row[way]["to_cpu"]  # there is one row
    lines = capsys.readouterr().out.splitlines()
    assert "load " in lines[-2]
    assert lines[-1].startswith("all ")
    assert "load " in lines[-1]

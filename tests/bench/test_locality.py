"""These tests cover the table of schedulers over twins: the recordings that it makes, and how it judges."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import pytest

from bench import locality
from spac.scheduler.replay import Demand
from tools.twin.drift import Drift, simulate

NOTE = {"name": "x", "kept": 0.4, "near": 0.8, "growth": {"8": 3.5}, "accepted": 0.5}


def recording(path: Path, drift: Drift) -> Path:
    """Write what 200 single tokens of that drift want of 6 layers with 32 experts, 4 used. Return the
    path."""
    counts = simulate(drift, 32, 4, n_token=200, n_row=6).astype(np.int32)
    Demand.of(counts, 4).save(path)
    path.with_suffix(".json").write_text(json.dumps(NOTE))
    return path


def test_every_scheduler_is_held_against_the_bounds(tmp_path: Path) -> None:
    path = recording(tmp_path / "slow.npz", Drift(0.8, 0.97))
    found = locality.judge(path, "25%", ["lru", "moe-spac"], None)
    assert found["steps"] == 100
    assert found["clairvoyant"]["distinct"] >= found["belady"]["distinct"]
    assert 0.3 < found["lru"]["distinct"] <= found["belady"]["distinct"]
    # With topics that pass, earlier demand is no guide. With skew, it is the best guide.
    assert found["profiled"]["distinct"] < found["lru"]["distinct"] - 0.2
    skewed = locality.judge(recording(tmp_path / "skew.npz", Drift(0.0, 0.0, 0.9)), "25%", ["lru"], None)
    assert skewed["profiled"]["distinct"] > 0.7
    assert skewed["profiled"]["uploads"] < skewed["lru"]["uploads"]


def test_the_page_marks_the_best(tmp_path: Path) -> None:
    rows = [locality.judge(recording(tmp_path / "a.npz", Drift(0.8, 0.97)), "25%", ["lru"], 5)]
    text = locality.page(rows, ["lru", "profiled"], 5)
    assert "at most 5 uploads a step" in text
    assert rows[0]["lru"]["uploads"] <= 5
    line = next(line for line in text.splitlines() if line.strip().startswith("25% x"))
    assert line.count("*") == 1
    assert f"{rows[0]['lru']['distinct'] / rows[0]['belady']['distinct']:.1%}*" in line
    pytest.importorskip("matplotlib")
    locality.plot(rows, ["lru"], tmp_path / "p.png")
    assert (tmp_path / "p.png").stat().st_size > 1000


def test_a_recording_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("MODEL", "tiny"), ("WIDTH", 64), ("N_VOCAB", 1024)):
        monkeypatch.setattr(locality, name, value)
    monkeypatch.setattr(locality, "settings", lambda: {"share 0.50": Drift(0.5, 0.9)})
    args = argparse.Namespace(
        folder=tmp_path, only=None, tokens=20, texts=2, draft_length=4, agreement=0.8, threads=1
    )
    locality.record(args)
    demand = Demand.load(tmp_path / "share-0.50.npz")
    assert demand.counts.shape[1:] == (4, 128)
    assert demand.verified.max() == 5
    assert (demand.counts.sum((1, 2)) == demand.verified * 4 * 8).all()
    note = json.loads((tmp_path / "share-0.50.json").read_text())
    assert 0 < note["kept"] < note["near"] < 1
    made = (tmp_path / "share-0.50.npz").stat().st_mtime_ns
    locality.record(args)
    assert (tmp_path / "share-0.50.npz").stat().st_mtime_ns == made
    assert sorted(path.name for path in tmp_path.iterdir()) == ["share-0.50.json", "share-0.50.npz"]

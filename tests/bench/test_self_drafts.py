"""The figures of a target's drafts for itself: steps that are made of a trace, and the printed tables."""

from __future__ import annotations

import json
import sys

import numpy as np

from bench import self_drafts
from spac.scheduler.trace import Trace


def trace(n_token=40, n_layer=2, n_expert=8, n_used=2):
    draw = np.random.default_rng(1)
    experts = np.stack([draw.permuted(np.arange(n_expert))[:n_used] for _ in range(n_token * n_layer)])
    experts = experts.reshape(n_token, n_layer, n_used).astype(np.int32)
    return Trace(experts, np.array([n_token], np.int32), n_expert, 1000)


def test_steps_go_on_behind_the_accepted_tokens():
    made, gamma = trace(), 3
    demand = self_drafts.steps_of(made, gamma, [1])
    assert (demand.accepted == 1).all()
    assert (demand.verified == gamma + 1).all()
    assert len(demand.counts) == 19, "every second token begins a step that has three more"
    for step, counts in enumerate(demand.counts):
        window = made.experts[2 * step : 2 * step + gamma + 1]
        for layer, row in enumerate(counts):
            assert row.tolist() == np.bincount(window[:, layer].ravel(), minlength=8).tolist()
    longer = self_drafts.steps_of(made, gamma, [8])
    assert (longer.accepted == gamma).all()


def test_a_draft_that_is_always_right_is_worth_most(tmp_path, monkeypatch, capsys):
    made = tmp_path / "tiny.npz"
    trace(64).save(made)
    measured = tmp_path / "measured.json"
    measured.write_text(json.dumps({"where": "here", "temp": 0, "slots": {"50%": [0, 0, 1]}}))
    page = tmp_path / "page.txt"
    monkeypatch.setattr(sys, "argv", ["self_drafts", "predict", str(measured), str(made), "--out", str(page)])
    self_drafts.main()
    rows = [line.split() for line in page.read_text().splitlines() if line.startswith("tiny")]
    assert len(rows) == 3, "a row for each machine"
    for row in rows:
        assert float(row[4]) < float(row[8]), "measured acceptance, and all accepted"

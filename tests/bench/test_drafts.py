"""The page of drafts: what recorded drafts yielded, and which experts their windows use."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from bench import drafts
from bench.__main__ import main
from bench.schedulers.trace import Trace
from spac.replay import Demand
from spac.scheduler.base import Layer

N_EXPERT, N_USED, LENGTH = 5, 2, 2


def recording(routes, accepted, draft_routes=None, verified=None) -> Demand:
    """Return steps of one layer. routes: the experts of every verified token, [step][token][used]."""
    experts = np.array(routes, np.int32)[:, None]
    counts = drafts.used_by(experts, N_EXPERT).sum(axis=2).astype(np.int32)
    verified = np.full(len(experts), experts.shape[2], np.int32) if verified is None else verified
    named = None if draft_routes is None else np.array(draft_routes, np.int32)[:, None]
    layers = (Layer("layer 0", N_EXPERT, N_USED, 1, 0),)
    return Demand(layers, counts, verified, np.array(accepted, np.int32), experts, named)


STEPS = [[[0, 1], [1, 2], [3, 4]], [[0, 1], [0, 1], [1, 0]], [[2, 3], [3, 4], [-1, -1]]]
DEMAND = recording(STEPS, [2, 0, 1], verified=np.array([3, 3, 2], np.int32))


def test_a_shorter_draft_begins_with_the_same_tokens():
    found = drafts.acceptance(DEMAND)
    assert found["share"][:2] == [2 / 3, 3 / 5]
    assert found["tokens"][:2] == pytest.approx([1 + 2 / 3, 2.0])
    assert len(found["share"]) == len(drafts.LENGTHS)


def test_windows_count_distinct_experts_with_rejected_tokens():
    # Two tokens: 3, 2 and 3 experts. Three tokens: 5 and 2. One: 2 each.
    assert drafts.multiples(DEMAND)[:2] == pytest.approx([8 / 3 / 2, 7 / 2 / 2])
    assert np.isnan(drafts.multiples(DEMAND)[2])


def test_what_was_foretold():
    named = [[[0, 1], [2, 1], [4, 0]]] * 2 + [[[2, 3], [-1, -1], [-1, -1]]]
    found = drafts.foretold(replace(DEMAND, draft_routes=np.array(named, np.int32)[:, None]))
    # Of seven tokens, the named ones that are right: 2 2 1, 2 1 1, 2.
    assert found["named"] == found["right"] == pytest.approx(11 / 14)
    assert found["first"] == pytest.approx(5 / 7)
    assert found["set"] == pytest.approx(4 / 7)
    assert found["order"] == pytest.approx(3 / 7)


def test_a_draft_of_fewer_experts_names_fewer():
    named = [[[0], [2], [0]]] * 3
    found = drafts.foretold(replace(DEMAND, draft_routes=np.array(named, np.int32)[:, None]))
    assert (found["named"], found["right"]) == pytest.approx((4 / 16, 4 / 8))
    assert (found["set"], found["order"]) == (0, 0)


def test_routes_that_do_not_change_are_kept():
    experts = np.array([[[0, 1]], [[0, 1]], [[2, 3]], [[2, 3]]], np.int32)
    found = drafts.spread_of_routes(Trace(experts, np.array([2, 2], np.int32), 4))
    assert found["kept"] == 1  # from text to text nothing is kept, and nothing is expected
    assert found["entropy"] == found["most"] == pytest.approx(1)
    assert found["chance"] == pytest.approx(0.5)


def test_utilities_that_are_right():
    """An expert that every step uses is hot, and the others are cold."""
    always = np.zeros((40, 3, 2), np.int32)
    always[..., 1] = 1
    accuracy, constant = drafts.hot_or_cold("moe-spac", recording(always, [2] * 40))
    assert accuracy == 1
    assert constant == pytest.approx(3 / 5)


def test_the_page(tmp_path):
    named = [[[0, 1], [2, 1], [4, 0]]] * 2 + [[[2, 3], [-1, -1], [-1, -1]]]
    with_draft = replace(DEMAND, draft_routes=np.array(named, np.int32)[:, None])
    with_draft.save(tmp_path / "drafted.npz")
    Trace.of(with_draft).save(tmp_path / "plain.npz")
    page = tmp_path / "page.md"
    files = [str(tmp_path / "drafted.npz"), str(tmp_path / "plain.npz")]
    assert main(["drafts", *files, "--out", str(page)]) == 0
    text = page.read_text()
    for title in ("Acceptance of the first n tokens", "Windows", "Routes", "Foretold", "Hot or cold"):
        assert f"## {title}" in text
    assert "| drafted | 66.7% | 60.0% |" in text
    assert "| drafted | draft | 78.6% |" in text
    assert text.count("| plain |") == 2 + len(drafts.UTILITIES)
    assert len(json.loads(page.with_suffix(".json").read_text())["figures"]) == 2


def test_bad_input_gets_one_line(tmp_path, capsys):
    (tmp_path / "text.npz").write_text("no archive")
    for name in ("none.npz", "text.npz"):
        assert main(["drafts", str(tmp_path / name)]) == 2
        error = capsys.readouterr().err
        assert f"{name} is not a trace" in error
        assert error.count("\n") == 1

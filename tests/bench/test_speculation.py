"""These tests cover what verifications tell a scheduler: the feeds, the hits that count, and the page."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from bench.schedulers.replays import between, pool_slots_of
from bench.schedulers.speculation import Signal, TokenFed, accepted_hits, main, omega, reuse
from spac import scheduler
from spac.scheduler import Event, Scheduler
from spac.scheduler.replay import Demand, replay
from spac.scheduler.trace import Trace
from tests.scheduler.test_transitions import grammar


def windowed(window: int = 4, n_token: int = 200) -> Demand:
    """Return a trace's windows, of which the last two tokens were rejected."""
    demand = grammar(n_token).demand(window)
    return replace(demand, accepted=np.maximum(demand.verified - 3, 0).astype(np.int32))


class Seen(Scheduler):
    """Keeps the views, and plans what the last one used."""

    name = "seen"

    def __init__(self) -> None:
        self.views: list = []

    def on(self, event, view):
        if event == Event.VERIFY_END:
            self.views.append(replace(view, demand=view.demand.copy(), routes=view.routes.copy()))


def test_the_accepted_tokens_come_one_by_one():
    demand, seen = windowed(), Seen()
    replay(TokenFed(seen), demand, pool_slots_of(demand, "25%"))
    tokens = Trace.of(demand).demand(1)
    assert len(seen.views) == len(tokens.counts) < demand.verified.sum()
    for view, counts in zip(seen.views, tokens.counts, strict=True):
        np.testing.assert_array_equal(view.demand, counts)
        assert (view.n_verified, view.n_accepted, view.routes.shape[1]) == (1, 0, 1)


def test_hits_are_those_of_accepted_tokens():
    demand = windowed()
    found = replay(scheduler.make("lru"), demand, pool_slots_of(demand, "25%"))
    hits = total = 0
    for step, routes in enumerate(demand.routes):
        for token in range(demand.accepted[step] + 1):
            for layer, experts in enumerate(routes[:, token]):
                hits += int(found.resident[step, layer, experts[experts >= 0]].sum())
                total += int((experts >= 0).sum())
    assert accepted_hits(demand, found) == pytest.approx(hits / total)


def test_reuse_is_counted_in_whole_windows():
    experts = np.array([[[0, 1]], [[0, 2]], [[0, 1]], [[0, 2]], [[3, 4]]], np.int32)
    trace = Trace(experts, np.array([5], np.int32), 5)
    assert reuse(trace, (0, 1, 3)) == [1.0, 1.5, 1.5]
    assert omega(3, 0.8) == pytest.approx(1 + 0.8 + 0.64 + 0.512)


def test_the_shares_of_levels_fit_together():
    demand = windowed()
    signal = Signal.of("moe-spac:paper", demand, pool_slots_of(demand, "25%"))
    assert sum(share for share, _, _ in signal.frequency) == pytest.approx(1)
    shares = [c for c, *_ in signal.on_device]
    assert shares == sorted(shares, reverse=True)
    assert 0 < signal.accuracy < 1
    assert between(demand).costs.experts[0].upload_s == 0


def test_the_page_has_traces_and_recordings(tmp_path, capsys):
    grammar(150).save(tmp_path / "words.npz")
    windowed(n_token=150).save(tmp_path / "recorded.npz")
    out = tmp_path / "page.txt"
    names = ["moe-spac:paper", "lru"]
    files = [str(tmp_path / name) for name in ("words.npz", "recorded.npz")]
    assert main([*files, "--windows", "2", "--slots", "25%", "--out", str(out), "--schedulers", *names]) == 0
    rows = json.loads(out.with_suffix(".json").read_text())
    assert [row["title"] for row in rows] == ["words, 2 tokens", "recorded, recorded"]
    assert rows[1]["tokens"] < rows[0]["tokens"] == 150
    for row in rows:
        assert set(row["sensor"]) == set(names)
        assert set(row["signals"]) == {"moe-spac:paper"}
        assert all(0 < hits < 1 for hits, _ in row["sensor"]["lru"].values())
    assert capsys.readouterr().out.strip() in out.read_text()
    assert main([files[0], "--windows", "0"]) == 2
    assert "at least 1" in capsys.readouterr().err

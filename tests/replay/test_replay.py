"""The replayer agrees with a slow, simple mechanism of the tests, and with the engine's counters."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from spac import scheduler
from spac.config import EngineConfig, SamplingConfig
from spac.engine import Engine
from spac.errors import InputError
from spac.replay import Demand, replay
from spac.scheduler import Event, Layer, Plan, Scheduler, View
from spac.stats.recording import Recorder


class Scripted(Scheduler):
    """A scheduler that follows a script, step by step."""

    name = "scripted"

    def __init__(self, plans: list[Plan]) -> None:
        self.plans = iter(plans)

    def on(self, event: Event, view: View) -> Plan | None:
        return next(self.plans)


@st.composite
def scripts(draw: st.DrawFn) -> tuple[np.ndarray, list[Plan]]:
    """Draw counts [T, 2, 4] and plans. Priorities are total orders: there is one way to reach them."""
    n_step = draw(st.integers(1, 8))
    counts = draw(arrays(np.int32, (n_step, 2, 4), elements=st.integers(0, 3)))
    counts[:, :, 0] = np.maximum(counts[:, :, 0], 1)
    plans = []
    for _ in range(n_step + 1):
        order = np.array(draw(st.permutations(range(8))), np.int32).reshape(2, 4)
        plans.append(Plan(order, draw(arrays(np.int32, 2, elements=st.integers(0, 8)))))
    return counts, plans


@given(scripts(), st.integers(0, 8))
def test_a_settled_plan_holds_the_best_of_wanted_and_resident(script, n_slots):
    counts, plans = script
    result = replay(Scripted(plans), Demand.of(counts, n_used=1), n_slots)
    resident: set[int] = set()
    hits = distinct = uploads = evictions = 0
    for step, now in enumerate(counts):
        plan = plans[step]
        priority, wanted = plan.priority.ravel(), set(np.flatnonzero(plan.wanted).tolist())
        best = sorted(resident | wanted, key=lambda e, p=priority: -p[e])[:n_slots]
        # A resident stays unless a better expert displaces it, even if it is not wanted.
        uploads += len(set(best) - resident)
        evictions += len(resident - set(best))
        resident = set(best)
        np.testing.assert_array_equal(np.flatnonzero(result.resident[step]), sorted(resident))
        hits += int(now.ravel()[sorted(resident)].sum())
        distinct += int((now.ravel()[sorted(resident)] > 0).sum())
    assert (result.activations_hit, result.distinct_hit) == (hits, distinct)
    assert result.uploads >= uploads  # the last plan is carried out too
    assert result.evictions >= evictions


@given(scripts(), st.integers(0, 8), st.integers(0, 3))
def test_a_slow_link_moves_no_more_than_it_can(script, n_slots, most):
    counts, plans = script
    result = replay(Scripted(plans), Demand.of(counts, n_used=1), n_slots, max_uploads=most)
    moved = np.diff(result.resident.astype(int), axis=0, prepend=0)
    assert ((moved > 0).sum(axis=(1, 2)) <= most).all()
    assert result.resident.sum(axis=(1, 2)).max() <= n_slots


def test_uploads_and_evictions_are_counted():
    counts = np.array([[[1, 0, 0]], [[1, 0, 0]], [[1, 0, 0]]], np.int32)
    row = [np.array([[0, 5, 0]], np.int32), np.array([[6, 0, 0]], np.int32)]
    one = np.ones(1, np.int32)
    plans = [Plan(row[0], one), Plan(row[1], one), Plan(row[1], one), Plan(row[1], one)]
    result = replay(Scripted(plans), Demand.of(counts, n_used=1), 1)
    assert (result.uploads, result.evictions) == (2, 1)
    assert result.hit_rate == pytest.approx(2 / 3)


def test_demand_is_saved_and_loaded(tmp_path):
    layers = (Layer("a", 4, 2, 10, 0), Layer("b", 3, 2, 20, 1))
    counts = np.array([[[1, 1, 0, 0], [2, 0, 0, 0]]], np.int32)
    demand = Demand(layers, counts, np.array([1], np.int32), np.array([0], np.int32))
    demand.save(tmp_path / "demand.npz")
    again = Demand.load(tmp_path / "demand.npz")
    assert again.layers == layers
    np.testing.assert_array_equal(again.counts, counts)
    assert again.routes is None
    np.savez(tmp_path / "earlier.npz", **demand.arrays, draft_shares=np.ones((1, 2, 1, 2), np.float16))
    np.testing.assert_array_equal(Demand.load(tmp_path / "earlier.npz").counts, counts)
    (tmp_path / "other.npz").write_bytes(b"nothing")
    with pytest.raises(InputError, match="not a recording"):
        Demand.load(tmp_path / "other.npz")
    with pytest.raises(InputError, match="shape"):
        Demand(layers, counts[:, :1], demand.verified, demand.accepted)


class Routed(Scheduler):
    """A scheduler that keeps the routes it sees."""

    name = "routed"
    wants_routes = True

    def __init__(self) -> None:
        self.seen: list[np.ndarray | None] = []

    def on(self, event: Event, view: View) -> Plan | None:
        if event == Event.VERIFY_END:
            self.seen.append(view.routes)
        return None


def test_routes_are_saved_and_replayed(tmp_path):
    given = np.array([[[[0, 1], [0, 2]]], [[[3, 0], [-1, -1]]]], np.int32)
    counts = np.array([[[2, 1, 1, 0]], [[1, 0, 0, 1]]], np.int32)
    recorded = replace(Demand.of(counts, n_used=2), routes=given)
    recorded.save(tmp_path / "demand.npz")
    for each in (recorded, Demand.load(tmp_path / "demand.npz")):
        subject = Routed()
        replay(subject, each, 2)
        for shown, routes in zip(subject.seen, (given[0], given[1, :, :1]), strict=True):
            np.testing.assert_array_equal(shown, routes)
    subject = Routed()
    replay(subject, recorded.part(slice(1, None)), 2)
    np.testing.assert_array_equal(subject.seen, [given[1, :, :1]])
    subject = Routed()
    replay(subject, replace(recorded, routes=None), 2)
    assert subject.seen == [None, None]
    with pytest.raises(InputError, match="routes must have the shape"):
        replace(recorded, routes=given[0])


@pytest.mark.parametrize(
    "name",
    ["lru", "ewma", "logistic", "moe-spac", "moe-spac:learned=off", "moe-spac:paper", "moe-speq"],
)
@pytest.mark.parametrize("family", ["qwen3moe", "deepseek2"])
def test_the_replay_of_a_run_counts_what_the_engine_counted(tiny_model, name, family):
    target = tiny_model(family)
    config = EngineConfig(
        target=target,
        draft=target,
        draft_length=3,
        device="simulated",
        slots=0.3,
        threads=1,
        ctx=256,
        scheduler=name,
        state="off",
        deterministic=True,  # every plan is carried out before the target sees the draft
        sampling=SamplingConfig(temp=1.5, seed=3, ignore_eos=True),
    )
    with Engine(config) as engine:
        before = engine.experts.stats
        # The prompt is one token. A prompt's graph has no outputs and ends before the last layer. From there
        # on, experts of equal priority in the first plan would be loaded.
        "".join(engine.generate([5], 40, recorder=(recorder := Recorder())))
        assert engine.experts.settle(20)
        counted = {key: value - before[key] for key, value in engine.experts.stats.items()}
        pool_slots = list(engine.experts.pool_slots)
    demand = recorder.demand
    result = replay(scheduler.make(name), demand, pool_slots)
    assert result.activations > 0
    assert result.distinct_hit > 0
    for key in ("activations", "activations_hit", "distinct", "distinct_hit", "uploads", "evictions"):
        assert getattr(result, key) == counted[key], key


def test_all_drafts_of_counts_are_accepted():
    demand = Demand.of(np.full((2, 1, 3), 2, np.int32), n_used=2)
    assert demand.verified.tolist() == [3, 3]
    assert demand.accepted.tolist() == [2, 2]

"""MoE-SpeQ's scheduler puts predicted experts first, and perfect foresight gives the most hits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.schedulers.belady import clairvoyant
from spac import _core
from spac.papers.moe_speq import MoeSpeqScheduler, window_misses
from spac.replay import Demand, replay
from spac.scheduler import Event, Layer
from spac.scheduler.demand import activations_of
from tests.scheduler.views import make_view, models


def routes_of(rng: np.random.Generator, shape: tuple[int, ...], n_expert: int, n_used: int) -> np.ndarray:
    """Return the distinct experts of every token, int32 [*shape, U]."""
    order = np.argsort(rng.random((*shape, n_expert)), axis=-1)
    return order[..., :n_used].astype(np.int32)


def recorded(routes: np.ndarray, predicted: np.ndarray, n_expert: int, pools: list[int]) -> Demand:
    """Return the demand of steps with these routes, int32 [steps, L, tokens, U]."""
    n_step, n_layer, n_token, n_used = routes.shape
    counts = np.stack([activations_of(each, n_expert) for each in routes])
    layers = tuple(Layer(f"layer {i}", n_expert, n_used, 1, pool) for i, pool in enumerate(pools))
    assert len(layers) == n_layer
    verified = np.full(n_step, n_token, np.int32)
    return Demand(layers, counts, verified, verified - 1, routes, predicted)


@st.composite
def decodings(draw: st.DrawFn) -> tuple[np.ndarray, int, list[int], list[int]]:
    """Draw routes [steps, L, tokens, U], experts of a layer, pool of every layer, and slots of every pool."""
    n_expert = draw(st.integers(1, 8))
    n_used = draw(st.integers(1, n_expert))
    n_layer, n_token = draw(st.integers(1, 4)), draw(st.integers(2, 5))
    rng = np.random.default_rng(draw(st.integers(0, 999)))
    routes = routes_of(rng, (draw(st.integers(1, 6)), n_layer, n_token), n_expert, n_used)
    pools = sorted(draw(st.lists(st.integers(0, 1), min_size=n_layer, max_size=n_layer)))
    pools = [pool - pools[0] for pool in pools]
    slots = draw(st.lists(st.integers(0, n_layer * n_expert), min_size=pools[-1] + 1, max_size=pools[-1] + 1))
    return routes, n_expert, pools, slots


@given(decodings())
def test_perfect_foresight_hits_all_that_can_be_hit(decoding):
    routes, n_expert, pools, slots = decoding
    demand = recorded(routes, routes, n_expert, pools)
    result = replay(MoeSpeqScheduler(), demand, slots)
    assert result.distinct_hit == clairvoyant(demand.counts, pools, slots).distinct_hit


@given(decodings())
def test_nothing_predicted_is_missed_where_it_fits(decoding):
    routes, n_expert, pools, slots = decoding
    predicted = routes[:, :, :-1]  # as with a draft model, the last token's routes are not predicted
    demand = recorded(routes, predicted, n_expert, pools)
    result = replay(MoeSpeqScheduler(), demand, slots)
    for routes, resident in zip(predicted, result.resident, strict=True):
        uses = activations_of(routes, n_expert)
        for pool, n_slots in enumerate(slots):
            members = [i for i, each in enumerate(pools) if each == pool]
            missed = (uses[members] > 0) & ~resident[members]
            assert missed.sum() == max(0, np.count_nonzero(uses[members]) - n_slots)
            if missed.any():  # missed experts have the fewest tokens
                assert uses[members][missed].max() <= uses[members][resident[members]].min(initial=99)


@given(models(), st.integers(0, 999), st.integers(0, 4))
def test_eviction_is_beladys_within_the_window(model, seed, n_token):
    """Residents without a use in the window go first. No other one gives way to an expert of fewer uses."""
    n_experts, pools, slots = model
    rng = np.random.default_rng(seed)
    view = make_view(n_experts, slots, pools)
    table = _core.SlotTable(list(zip(n_experts, pools, strict=True)), slots)
    for layer, n in enumerate(n_experts):
        for expert in rng.permutation(n)[: rng.integers(0, n + 1)].tolist():
            if table.n_free(pools[layer]):
                view.slot_of[layer, expert] = table.acquire(layer, expert)
    n_used = min(n_experts)
    routes = np.stack([routes_of(rng, (n_token,), n, n_used) for n in n_experts])
    subject = MoeSpeqScheduler()
    subject.on(Event.START, view)
    subject._use[:] = rng.random(subject._use.shape) * view.exists
    plan = subject.on(Event.DRAFT_END, replace(view, n_drafted=n_token, draft_routes=routes))
    if n_token == 0:
        assert plan is None
        return
    uses = activations_of(routes, view.n_expert)
    worth = np.where(uses > 0, 1.0 + uses, subject._use)
    for _, load, victim in table.toward(plan.priority, plan.threshold, 0):
        if victim is None:
            continue
        pool = [i for i, each in enumerate(pools) if each == pools[load[0]]]
        stay = worth[pool][view.slot_of[pool] >= 0]
        assert worth[victim] <= worth[load]
        assert (uses[victim] == 0) == (stay.min() < 1), "the predicted are evicted last"
        view.slot_of[victim] = -1


def test_the_plan_follows_the_draft_token_by_token():
    subject = MoeSpeqScheduler()
    view = make_view([6], [2])
    subject.on(Event.START, view)
    wanted = []
    for routes in ([[[5]]], [[[5], [1]]], [[[5], [1], [1]]], [[[5], [1], [1], [0], [0]]]):
        shown = replace(view, draft_routes=np.array(routes, np.int32))
        wanted.append(np.flatnonzero(subject.on(Event.DRAFT_TOKEN, shown).wanted).tolist())
    assert wanted == [[5], [1, 5], [1, 5], [0, 1]]
    # The verification ends the window. Its demand is then the only knowledge.
    plan = subject.on(Event.VERIFY_END, replace(view, demand=np.array([[0, 0, 2, 1, 0, 0]]), n_verified=3))
    assert np.flatnonzero(plan.wanted).tolist() == [2, 3]


def test_history_counts_for_the_tokens_to_come():
    """Early in a draft, an expert that most tokens use stays, though a token wants another. Later it goes."""
    subject = MoeSpeqScheduler()
    view = make_view([4], [1])
    subject.on(Event.START, view)
    for _ in range(10):
        step = replace(view, demand=np.array([[6, 2, 0, 0]]), n_verified=8, n_drafted=7)
        subject.on(Event.VERIFY_END, step)
    shown = replace(view, draft_routes=np.array([[[3]]], np.int32))
    assert np.flatnonzero(subject.on(Event.DRAFT_TOKEN, shown).wanted).tolist() == [0]
    all_of_it = replace(view, draft_routes=np.full((1, 7, 1), 3, np.int32))
    assert np.flatnonzero(subject.on(Event.DRAFT_TOKEN, all_of_it).wanted).tolist() == [3]
    assert np.flatnonzero(subject.on(Event.DRAFT_END, shown).wanted).tolist() == [3]


@given(decodings())
def test_windows_count_distinct_absent_experts(decoding):
    routes, n_expert, _, _ = decoding
    ids = routes[0]
    resident = np.random.default_rng(len(ids)).random((len(ids), n_expert)) < 0.3
    windows = window_misses(ids, resident)
    wanted = [
        np.count_nonzero((activations_of(ids[:, : n + 1], n_expert) > 0) & ~resident)
        for n in range(ids.shape[1])
    ]
    assert windows.tolist() == wanted


def test_misses_of_the_window_are_those_at_the_drafts_end():
    subject = MoeSpeqScheduler()
    view = make_view([4], [2])
    view.slot_of[0, 3] = 0
    subject.on(Event.START, view)
    shown = replace(view, draft_routes=np.array([[[3], [1], [1], [0]]], np.int32))
    subject.on(Event.DRAFT_TOKEN, shown)
    assert subject.window_misses is None
    subject.on(Event.DRAFT_END, shown)
    np.testing.assert_array_equal(subject.window_misses, [0, 1, 1, 2])
    subject.on(Event.VERIFY_END, replace(view, demand=np.array([[1, 1, 1, 1]], np.int32), n_verified=4))
    np.testing.assert_array_equal(subject.window_misses, [0, 1, 1, 2], "the governor reads them then too")
    subject.on(Event.DRAFT_END, view)
    assert subject.window_misses is None


def test_where_entropy_is_low_more_is_kept_unpredicted():
    """Two layers share a pool. Three of four tokens go to the first 4 experts in one, to any in the other."""
    rng = np.random.default_rng(1)
    subject = MoeSpeqScheduler()
    view = make_view([16, 16], [8])
    subject.on(Event.START, view)
    kept = []
    for _ in range(200):
        demand = np.zeros((2, 16), np.int32)
        for _ in range(5):
            demand[0, rng.integers(0, 4) if rng.random() < 0.75 else rng.integers(4, 16)] += 1
            demand[1, rng.integers(0, 16)] += 1
        plan = subject.on(Event.VERIFY_END, replace(view, demand=demand, n_verified=5))
        kept.append(plan.wanted)
    share = np.mean(kept, axis=0)
    assert share[0, :4].mean() > 0.75
    assert share[0, 4:].mean() < 0.2
    assert share[1].mean() < 0.35
    assert subject._use.sum(axis=1) == pytest.approx([1, 1], rel=0.01)

"""SP-MoE's scheduler puts predicted experts first, up to the cutoff layer. For the rest it is an LRU."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spac import scheduler
from spac.costs import Costs, ExpertCosts
from spac.errors import InputError
from spac.papers.sp_moe import critical_experts, cutoff_layer
from spac.replay import Demand, replay
from spac.scheduler import Event, share_slots
from tests.scheduler.test_lru import ReferenceLru
from tests.scheduler.views import demands, make_view, models


@dataclass
class Known:
    costs: Costs


class Bench:
    def __init__(self, model, **options) -> None:
        self.n_experts, self.pools, self.slots = model
        self.view = make_view(self.n_experts, self.slots, self.pools)
        self.shares = share_slots(self.view.layers, self.view.pool_slots)
        self.subject = scheduler.make("sp-moe", **options)
        assert not self.subject.on(Event.START, self.view).wanted.any()
        self.reference = ReferenceLru(len(self.n_experts))

    def draft(self, orders, n):
        """Return the plan after the n-th token, whose experts in order of their scores are `orders`."""
        event = replace(self.view, draft_routes=self.chosen(orders)[:, :n], n_drafted=n)
        return self.subject.on(Event.DRAFT_TOKEN, event)

    def chosen(self, orders):
        """Return what the routers choose that the scheduler asks: the first of `orders`, int32 [L, T, N]."""
        critical = np.zeros(len(orders), np.int32)
        critical[: len(self.subject.critical)] = self.subject.critical
        return np.where(np.arange(orders.shape[2]) < critical[:, None, None], orders, -1).astype(np.int32)

    def verify(self, demand):
        return self.subject.on(Event.VERIFY_END, replace(self.view, demand=demand))


@st.composite
def drafts(draw, n_experts, n_token):
    """Draw an order of each layer's experts for every token, int32 [L, T, N]."""
    states = np.full((len(n_experts), n_token, max(n_experts)), -1, np.int32)
    for layer, n in enumerate(n_experts):
        for token in range(n_token):
            states[layer, token, :n] = draw(st.permutations(range(n)))
    return states


def counts_of(states, critical):
    counts = np.zeros((states.shape[0], states.shape[2]), np.int32)
    for layer, k in enumerate(critical):
        for token in states[layer, :, :k].astype(int):
            counts[layer, token] += 1
    return counts


@given(models(), st.integers(0, 6), st.integers(1, 3), st.data())
def test_predictions_are_uses_and_verifications_later_ones(model, cutoff, critical, data):
    bench = Bench(model, cutoff=cutoff, critical=critical)
    assert len(bench.subject.critical) == min(cutoff, len(model[0])), "no layer behind the cutoff is asked"
    n_experts = bench.n_experts
    n_layer = min(cutoff, len(n_experts))
    k = critical_experts(bench.view.layers, critical)[:n_layer]
    for _ in range(data.draw(st.integers(1, 3))):
        n_token = data.draw(st.integers(0, 3))
        states = data.draw(drafts(n_experts, n_token))
        for n in range(1, n_token + 1):
            plan = bench.draft(states, n)
            if n_layer == 0:
                assert plan is None
                continue
            counts = np.zeros((len(n_experts), max(n_experts)), np.int32)
            counts[:n_layer] = counts_of(states[:n_layer, :n], k)
            bench.reference.touch(counts)
            assert plan.layers.tolist() == [layer < n_layer for layer in range(len(n_experts))]
            for layer in range(n_layer):
                recent = bench.reference.wanted(layer, bench.shares[layer])
                predicted = np.flatnonzero(counts[layer])
                assert set(np.flatnonzero(plan.wanted[layer])) == set(recent) & set(predicted)
            level = plan.threshold[0]
            assert (plan.priority[plan.wanted] == level).all(), "within it the layers in the order they run"
            assert (plan.priority[:n_layer][~plan.wanted[:n_layer]] < level).all()
        demand = data.draw(demands(n_experts))
        bench.reference.touch(demand)
        plan = bench.verify(demand)
        for layer, share in enumerate(bench.shares if plan is not None else ()):
            recent, order = bench.reference.wanted(layer, share), plan.priority[layer, : n_experts[layer]]
            assert np.argsort(-order, kind="stable")[: len(recent)].tolist() == recent
            loads = n_token == 0 or layer >= n_layer
            assert np.count_nonzero(plan.wanted[layer]) == loads * len(recent)


def test_copies_begin_with_the_first_layer():
    """Each layer that becomes known adds its experts, and leaves those of earlier layers and tokens."""
    bench = Bench(([8] * 3, [0] * 3, [12]), critical=2)
    orders = np.stack([np.roll(np.arange(8), -2 * token)[None].repeat(3, 0) for token in range(2)], 1)
    wanted = []
    for token in range(2):
        for layer in range(3):
            known = bench.chosen(orders)[:, : token + 1]
            known[layer + 1 :, token] = -1
            event = replace(bench.view, draft_routes=known, n_drafted=token, layer=layer)
            plan = bench.subject.on(Event.DRAFT_LAYER, event)
            wanted.append(plan.wanted.sum(axis=1).tolist())
        bench.draft(orders, token + 1)
    assert wanted == [[2, 0, 0], [2, 2, 0], [2, 2, 2], [4, 2, 2], [4, 4, 2], [4, 4, 4]]


def test_a_draft_that_was_stopped_leaves_no_counts():
    bench = Bench(([6], [0], [2]), critical=1)
    first = np.array([[[0, 1, 2, 3, 4, 5]] * 3])
    for n in (1, 2, 3):
        bench.draft(first, n)
    second = np.array([[[4, 1, 2, 3, 0, 5]] * 3])
    plan = bench.draft(second, 1)
    assert plan.priority[0].argmax() == 4, "though the first draft predicted 0 three times"


def test_of_equal_predictions_those_that_are_there_stay():
    bench = Bench(([6], [0], [2]), critical=3, cutoff=1)
    bench.view.slot_of[0, 4] = 0
    states = np.array([[[0, 2, 4, 1, 3, 5], [0, 1, 2, 3, 4, 5]]])
    plan = bench.draft(states, 1)
    assert np.flatnonzero(plan.wanted[0]).tolist() == [0, 4]
    plan = bench.draft(states, 2)
    assert np.flatnonzero(plan.wanted[0]).tolist() == [0, 2], "another that two tokens want"


def test_without_drafts_it_is_an_lru():
    model = ([7, 5, 7], [0, 0, 0], [8])
    bench, lru = Bench(model), scheduler.make("lru")
    lru.on(Event.START, bench.view)
    rng = np.random.default_rng(3)
    for _ in range(6):
        demand = rng.integers(0, 3, (3, 7)).astype(np.int32)
        demand[1, 5:] = 0
        plan, expected = bench.verify(demand), lru.on(Event.VERIFY_END, replace(bench.view, demand=demand))
        assert np.array_equal(plan.priority, expected.priority)
        assert np.array_equal(plan.threshold, expected.threshold)
        for event, routes in ((Event.DRAFT_TOKEN, None), (Event.DRAFT_END, np.zeros((3, 0, 7), np.int32))):
            assert bench.subject.on(event, replace(bench.view, draft_routes=routes)) is None


def costs(upload_s, draft_token_s):
    experts = tuple(ExpertCosts(0, 0, 0, 0, 0, each) for each in upload_s)
    return Costs(experts, 0.0, draft_token_s, (1.0,), (1.0,))


@given(models(), st.integers(1, 4), st.lists(st.integers(0, 5), min_size=3, max_size=3), st.integers(0, 30))
def test_the_cutoff_is_the_most_that_both_bounds_allow(model, critical, uploads, draft):
    n_experts, pools, slots = model
    view = make_view(n_experts, slots, pools)
    k = critical_experts(view.layers, critical)
    known = costs([float(each) for each in uploads], float(draft))

    def allowed(n_layer, known):
        room = [0] * len(slots)
        time = 0.0
        for layer in range(n_layer):
            room[pools[layer]] += int(k[layer])
            time += float(k[layer]) * uploads[pools[layer]]
        return all(a <= b for a, b in zip(room, slots, strict=True)) and (known is None or time <= draft)

    for each in (known, None):
        found = cutoff_layer(view.layers, view.pool_slots, k, each)
        assert allowed(found, each)
        assert found == len(n_experts) or not allowed(found + 1, each)


def test_auto_follows_the_costs():
    bench = Bench(([8] * 4, [0] * 4, [16]))
    found = []
    for draft in (0.0, 4.0, 7.9, 100.0):
        bench.view = replace(bench.view, costs=Known(costs([1.0], draft)))
        bench.verify(np.zeros((4, 8), np.int32))
        found.append(bench.subject.critical.tolist())
    assert found == [[], [2, 2], [2] * 3, [2] * 4], "two experts of each, a second for each"


def recorded(rng, n_step, gamma=1, n_layer=4, n_expert=16, n_used=2):
    """Return demand whose draft showed exactly what its verification used: random experts of each token."""
    routes = np.argsort(rng.random((n_step, n_layer, gamma + 1, n_expert)), axis=-1)[..., :n_used]
    counts = np.zeros((n_step, n_layer, n_expert), np.int32)
    for place in np.ndindex(*routes.shape):
        counts[place[0], place[1], routes[place]] += 1
    shown = np.where(np.arange(gamma + 1)[:, None] < gamma, routes, -1)
    shown, routes = shown.astype(np.int32), routes.astype(np.int32)
    return replace(Demand.of(counts, n_used), routes=routes, draft_routes=shown, of_target=True)


def test_a_replay_shows_the_recorded_choices(tmp_path):
    demand = recorded(np.random.default_rng(1), 40)
    with pytest.raises(InputError, match=r"'sp-moe' needs what .* record it with --scheduler sp-moe"):
        replay(scheduler.make("sp-moe"), replace(demand, of_target=False), 16)
    demand.save(tmp_path / "demand.npz")
    loaded = Demand.load(tmp_path / "demand.npz")
    assert loaded.of_target
    hits = [
        replay(scheduler.make(name), loaded, 16).hit_rate_distinct
        for name in ("sp-moe:cutoff=0", "sp-moe:cutoff=2", "sp-moe:cutoff=4", "lru")
    ]
    assert hits[0] == hits[3] < hits[1] < hits[2]
    assert hits[2] > 0.5, "the token before the draft, one of two, is known"
    fewer = replay(scheduler.make("sp-moe:critical=1"), loaded, 16).hit_rate_distinct
    assert hits[0] < fewer < hits[2]

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
from spac.scheduler import Event, share_slots
from spac.scheduler.replay import Demand, replay
from spac.scheduler.sp_moe import critical_experts, cutoff_layer
from tests.scheduler.test_lru import ReferenceLru
from tests.scheduler.views import demands, make_view, models


class Spelled:
    """Routers for states that are expert numbers, the best first: float32 [L, T, N]."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int]] = []  # layers and tokens

    def top(self, states, k):
        self.asked.append((len(k), states.shape[1]))
        chosen = states[: len(k), :, : max(k, default=0)].astype(np.int32)
        chosen[np.arange(chosen.shape[2]) >= np.asarray(k)[:, None, None].repeat(chosen.shape[1], 1)] = -1
        return chosen


@dataclass
class Known:
    costs: Costs


class Bench:
    """A scheduler and its reference, which see the same steps."""

    def __init__(self, model, **options) -> None:
        self.n_experts, self.pools, self.slots = model
        self.routers = Spelled()
        self.view = replace(make_view(self.n_experts, self.slots, self.pools), routers=self.routers)
        self.shares = share_slots(self.view.layers, self.view.pool_slots)
        self.subject = scheduler.make("sp-moe", **options)
        assert not self.subject.on(Event.START, self.view).wanted.any()
        self.reference = ReferenceLru(len(self.n_experts))

    def draft(self, states, n):
        """Return the plan after the n-th token."""
        event = replace(self.view, draft_states=states[:, :n], n_drafted=n)
        return self.subject.on(Event.DRAFT_TOKEN, event)

    def verify(self, demand):
        return self.subject.on(Event.VERIFY_END, replace(self.view, demand=demand))


@st.composite
def drafts(draw, n_experts, n_token):
    """Draw states for `Spelled`: an order of each layer's experts for every token."""
    states = np.full((len(n_experts), n_token, max(n_experts)), -1, np.float32)
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


def test_every_token_is_predicted_once_and_no_layer_behind_the_cutoff():
    bench = Bench(([8] * 4, [0] * 4, [16]), cutoff=3)
    states = np.tile(np.arange(8, dtype=np.float32), (4, 5, 1))
    for n in range(1, 5):
        bench.draft(states, n)
    assert bench.routers.asked == [(3, 1)] * 4
    end = replace(bench.view, draft_states=states[:, :4], n_drafted=4)
    assert bench.subject.on(Event.DRAFT_END, end) is None
    refused = replace(end, draft_states=states)
    assert bench.subject.on(Event.DRAFT_END, refused) is not None
    assert bench.routers.asked == [(3, 1)] * 5


def test_a_draft_that_was_stopped_leaves_no_counts():
    bench = Bench(([6], [0], [2]), critical=1)
    first = np.array([[[0, 1, 2, 3, 4, 5]] * 3], np.float32)
    for n in (1, 2, 3):
        bench.draft(first, n)
    second = np.array([[[4, 1, 2, 3, 0, 5]] * 3], np.float32)
    plan = bench.draft(second, 1)
    assert plan.priority[0].argmax() == 4, "though the first draft predicted 0 three times"


def test_of_equal_predictions_those_that_are_there_stay():
    bench = Bench(([6], [0], [2]), critical=3, cutoff=1)
    bench.view.slot_of[0, 4] = 0
    states = np.array([[[0, 2, 4, 1, 3, 5], [0, 1, 2, 3, 4, 5]]], np.float32)
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
        for event, states in ((Event.DRAFT_TOKEN, None), (Event.DRAFT_END, np.zeros((3, 0, 7), np.float32))):
            assert bench.subject.on(event, replace(bench.view, draft_states=states)) is None


def costs(upload_s, draft_token_s):
    experts = tuple(ExpertCosts(0, 0, 0, 0, 0, 0, each) for each in upload_s)
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
    states = np.tile(np.arange(8, dtype=np.float32), (4, 1, 1))
    plans = []
    for draft in (0.0, 4.0, 7.9, 100.0):
        bench.view = replace(bench.view, costs=Known(costs([1.0], draft)))
        plans.append(bench.draft(states, 1))
    assert plans[0] is None
    assert [int(plan.layers.sum()) for plan in plans[1:]] == [2, 3, 4], (
        "two experts of each, a second for each"
    )


def test_as_many_experts_are_critical_as_a_token_uses():
    view = make_view([8, 8, 1], [4])
    assert critical_experts(view.layers, None).tolist() == [2, 2, 1]
    assert critical_experts(view.layers, 3).tolist() == [3, 3, 1]


@pytest.mark.parametrize("written", ["cutoff=-1", "cutoff=some", "cutoff=on", "critical=0", "critical=1.5"])
def test_options_are_checked(written):
    with pytest.raises(InputError, match=rf"sp-moe.*{written.partition('=')[0]} must be"):
        scheduler.make(f"sp-moe:{written}")


def test_it_goes_on_from_its_state():
    model = ([7, 5], [0, 0], [4])
    one, two = Bench(model), Bench(model)
    states = np.array([[[3, 4, 0, 1, 2, 5, 6]], [[1, 0, 2, 3, 4, -1, -1]]], np.float32)
    one.draft(states, 1)
    one.verify(np.array([[1, 0, 2, 0, 0, 0, 0], [0, 1, 0, 0, 0, 0, 0]], np.int32))
    two.subject.restore(one.subject.state())
    demand = np.array([[0, 0, 0, 0, 0, 1, 0], [1, 0, 0, 0, 0, 0, 0]], np.int32)
    assert np.array_equal(one.verify(demand).priority, two.verify(demand).priority)


def test_a_replay_has_no_states():
    demand = Demand.of(np.ones((2, 1, 4), np.int32), 2)
    with pytest.raises(InputError, match="'sp-moe' needs a draft's hidden states"):
        replay(scheduler.make("sp-moe"), demand, 2)

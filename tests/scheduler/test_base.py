"""The contract refuses malformed plans. Partial plans leave the other rows alone, and shares add up."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given

from spac import scheduler
from spac.errors import InputError
from spac.scheduler import Event, Plan, share_slots
from tests.scheduler.views import make_view, models


@given(models())
def test_shares_use_every_slot_that_can_be_used(model):
    n_experts, pools, slots = model
    view = make_view(n_experts, slots, pools)
    shares = share_slots(view.layers, view.pool_slots)
    for pool, n_slots in enumerate(slots):
        members = [i for i in range(len(n_experts)) if pools[i] == pool]
        capacity = sum(n_experts[i] for i in members)
        assert sum(shares[i] for i in members) == min(n_slots, capacity)
        unfilled = [shares[i] for i in members if shares[i] < n_experts[i]]
        assert all(shares[i] <= n_experts[i] for i in members)
        if unfilled:  # a layer that could hold more is at most one behind the largest share
            assert max(shares[i] for i in members) - min(unfilled) <= 1


@pytest.mark.parametrize(
    ("priority", "threshold"),
    [
        (np.zeros((3, 5)), np.zeros(3, np.int32)),
        (np.zeros((3, 5), np.int32), np.zeros(3, np.int64)),
        (np.zeros((3, 5), np.int32), np.zeros(2, np.int32)),
        (np.zeros(5, np.int32), np.zeros(1, np.int32)),
    ],
)
def test_a_malformed_plan_is_refused(priority, threshold):
    with pytest.raises(InputError):
        Plan(priority, threshold)


def test_a_plan_refuses_layers_of_another_length():
    with pytest.raises(InputError, match=r"\[3\]"):
        Plan(np.zeros((3, 5), np.int32), np.zeros(3, np.int32), np.ones(2, np.bool_))


def test_a_partial_plan_leaves_the_other_rows():
    earlier = Plan(np.full((3, 5), 1, np.int32), np.array([1, 2, 3], np.int32))
    partial = Plan(np.full((3, 5), 7, np.int32), np.full(3, 7, np.int32), np.array([False, True, False]))
    full = partial.over(earlier)
    assert full.priority[:, 0].tolist() == [1, 7, 1]
    assert full.threshold.tolist() == [1, 7, 3]
    assert full.layers is None
    assert partial.wanted.any(axis=1).tolist() == [False, True, False]


def test_a_plan_of_another_shape_is_refused():
    with pytest.raises(InputError, match="shape"):
        Plan.nothing(3, 5).over(Plan.nothing(3, 6))


@pytest.mark.parametrize("name", scheduler.names())
@given(model=models())
def test_no_plan_wants_more_than_the_slots(name, model):
    n_experts, pools, slots = model
    rng = np.random.default_rng(0)
    view = make_view(n_experts, slots, pools)
    subject = scheduler.make(name)
    plan = subject.on(Event.START, view)
    assert plan is not None
    for _ in range(4):
        for pool, n_slots in enumerate(slots):
            members = [i for i in range(len(n_experts)) if pools[i] == pool]
            assert plan.wanted[members].sum() <= n_slots
        assert not plan.wanted[~view.exists].any()
        if Event.VERIFY_END in subject.events:
            demand = rng.integers(0, 3, view.demand.shape, dtype=np.int32) * view.exists
            plan = subject.on(Event.VERIFY_END, make_view(n_experts, slots, pools, demand)) or plan


def test_an_unknown_scheduler_names_the_known_ones():
    with pytest.raises(InputError, match="lru, static, none"):
        scheduler.make("belady")


def test_an_unknown_option_is_refused():
    with pytest.raises(InputError, match="window"):
        scheduler.make("lru", window=3)

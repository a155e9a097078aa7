"""LRU agrees with a simple reference: one ordered dictionary per layer."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from spac import scheduler
from spac.scheduler import Event, share_slots
from tests.scheduler.views import demands, make_view, models


class ReferenceLru:
    """The reference keeps the most recently used expert last. It touches a step's experts from the least to
    the most demanded."""

    def __init__(self, n_layer: int) -> None:
        self.used: list[OrderedDict[int, None]] = [OrderedDict() for _ in range(n_layer)]

    def touch(self, demand: np.ndarray) -> None:
        for used, counts in zip(self.used, demand, strict=True):
            for expert in sorted(np.flatnonzero(counts), key=lambda e: (counts[e], -e)):
                used[int(expert)] = None
                used.move_to_end(int(expert))

    def wanted(self, layer: int, share: int) -> list[int]:
        """Return the experts of a layer, the most recent first."""
        return list(reversed(self.used[layer]))[:share]


@given(models(), st.data())
def test_lru_keeps_what_an_ordered_dictionary_keeps(model, data):
    n_experts, pools, slots = model
    subject = scheduler.make("lru")
    view = make_view(n_experts, slots, pools)
    shares = share_slots(view.layers, view.pool_slots)
    plan = subject.on(Event.START, view)
    reference = ReferenceLru(len(n_experts))
    for _ in range(data.draw(st.integers(1, 5))):
        demand = data.draw(demands(n_experts))
        reference.touch(demand)
        plan = subject.on(Event.VERIFY_END, make_view(n_experts, slots, pools, demand)) or plan
        for layer, share in enumerate(shares):
            wanted = np.flatnonzero(plan.wanted[layer])
            by_priority = sorted(wanted, key=lambda e, row=layer: -plan.priority[row, e])
            assert by_priority == reference.wanted(layer, share)


@given(models(), st.data())
def test_a_wanted_expert_can_evict_every_unwanted_one(model, data):
    n_experts, pools, slots = model
    subject = scheduler.make("lru")
    subject.on(Event.START, make_view(n_experts, slots, pools))
    plan = subject.on(Event.VERIFY_END, make_view(n_experts, slots, pools, data.draw(demands(n_experts))))
    if plan is not None and plan.wanted.any() and not plan.wanted.all():
        assert plan.priority[plan.wanted].min() > plan.priority[~plan.wanted].max()


def test_a_new_start_forgets():
    subject = scheduler.make("lru")
    used = make_view([4], [2], demand=[[3, 0, 0, 1]])
    for _ in range(2):
        start = subject.on(Event.START, used)
        assert start is not None
        assert not start.wanted.any()
    plan = subject.on(Event.VERIFY_END, make_view([4], [2], demand=[[0, 1, 0, 0]]))
    assert plan is not None
    assert plan.wanted.tolist() == [[False, True, False, False]]

"""The fixed set is spread evenly, or as given."""

from __future__ import annotations

from spac import scheduler
from spac.scheduler import Event
from tests.scheduler.views import make_view


def test_the_default_set_is_spread_evenly_over_the_layers():
    plan = scheduler.make("static").on(Event.START, make_view([5, 5, 5], [7]))
    assert plan is not None
    assert plan.wanted.sum(axis=1).tolist() == [3, 2, 2]


def test_layers_with_fewer_experts_give_their_surplus_away():
    plan = scheduler.make("static").on(Event.START, make_view([2, 8, 8], [12]))
    assert plan is not None
    assert plan.wanted.sum(axis=1).tolist() == [2, 5, 5]


def test_pools_do_not_share():
    plan = scheduler.make("static").on(Event.START, make_view([4, 4, 4], [2, 4], pools=[0, 1, 0]))
    assert plan is not None
    assert plan.wanted.sum(axis=1).tolist() == [1, 4, 1]

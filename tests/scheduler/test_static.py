"""The fixed set is spread evenly, or as given."""

from __future__ import annotations

import pytest

from spac import scheduler
from spac.errors import InputError
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


def test_an_explicit_set_is_kept():
    plan = scheduler.make("static", experts=[(0, 4), (2, 1)]).on(Event.START, make_view([5, 5, 5], [2]))
    assert plan is not None
    assert [tuple(pair) for pair in zip(*plan.wanted.nonzero(), strict=True)] == [(0, 4), (2, 1)]


@pytest.mark.parametrize(
    ("experts", "fault"), [([(0, 5)], "expert 5 of layer 0"), ([(0, 1), (1, 1)], "1 slots")]
)
def test_a_set_that_cannot_be_is_refused(experts, fault):
    with pytest.raises(InputError, match=fault):
        scheduler.make("static", experts=experts).on(Event.START, make_view([5, 5], [1]))

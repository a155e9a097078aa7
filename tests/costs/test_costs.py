"""Costs are data that is checked, written, read again and looked up."""

from __future__ import annotations

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spac.costs import Costs, ExpertCosts
from spac.errors import InputError
from spac.scheduler import Layer
from tests.costs.machine import EXPERT, costs

SECONDS = st.floats(0, 1e3, allow_nan=False)
EXPERTS = st.builds(ExpertCosts, *[SECONDS] * len(dataclasses.fields(ExpertCosts)))


@st.composite
def any_costs(draw: st.DrawFn) -> Costs:
    tables = draw(st.lists(st.tuples(SECONDS, SECONDS), min_size=1, max_size=5))
    verify, dense = zip(*tables, strict=True)
    pools = tuple(draw(st.lists(EXPERTS, max_size=3)))
    return Costs(pools, draw(SECONDS), draw(SECONDS), verify, dense, draw(st.none() | SECONDS))


@given(any_costs())
def test_what_is_written_is_read_again(written):
    assert Costs.from_dict(json.loads(json.dumps(written.to_dict()))) == written


@pytest.mark.parametrize("change", [{"schema": 2}, {"draft_token_s": -1}, {"draft_token_s": "1"},
                                    {"verify_s": []}, {"dense_s": [1.0]}, {"experts": [{}]}, {"more": 1},
                                    {"experts": 3}, {"verify_s": [float("nan")] * 9}])  # fmt: skip
def test_what_is_no_cost_is_refused(change):
    with pytest.raises(InputError) as refused:
        Costs.from_dict({**costs().to_dict(), **change})
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("stored", ["", "costs", [], [1], None, {}, {"schema": 1}])
def test_what_is_not_costs_at_all_is_refused(stored):
    with pytest.raises(InputError, match="these are no costs"):
        Costs.from_dict(stored)


def test_a_cpu_with_nothing_to_do_costs_nothing():
    assert EXPERT.cpu_s(0, 0) == 0
    assert EXPERT.cpu_s(7, 3) == EXPERT.cpu_layer_s + 3 * EXPERT.cpu_expert_s + 7 * EXPERT.cpu_pair_s


def test_a_table_jumps_where_it_was_measured_to_and_goes_on_in_proportion():
    known = dataclasses.replace(costs(), verify_s=(1.0, 2.0, 7.0), dense_s=(0.5, 1.0, 3.0))
    assert [known.verify(n) for n in (1, 2, 3, 6)] == [1.0, 2.0, 7.0, 14.0]
    assert known.up_to(6).verify_s[5] == 14.0
    assert known.up_to(2) == known
    assert known.draft(0) == 0
    assert known.draft(4) == known.draft_base_s + 4 * known.draft_token_s


def test_a_guess_has_costs_for_every_pool():
    layers = [Layer("a", 8, 2, 1000, 0), Layer("b", 8, 2, 4000, 1), Layer("c", 8, 2, 1000, 0)]
    guess = Costs.guessed(layers, 5)
    assert [each.cpu_expert_s for each in guess.experts] == [1000 / 30e9, 4000 / 30e9]
    assert len(guess.verify_s) == 5
    assert list(guess.verify_s) == sorted(guess.verify_s)

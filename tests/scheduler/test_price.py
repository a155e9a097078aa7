"""The price of a copy: what it follows from, and what it makes of a machine."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from bench.schedulers.machine import MACHINES, Model
from bench.schedulers.simulation import Simulation
from spac import scheduler
from spac.costs import Costs, ExpertCosts
from spac.scheduler.price import STEPS, UNKNOWN, USES, CopyPrice, Reuse
from tests.scheduler.test_transitions import grammar
from tests.scheduler.views import make_view

EXPERT = ExpertCosts(
    cpu_layer_s=0.0, cpu_expert_s=4e-6, cpu_pair_s=1e-6, cpu_pair_only_s=4e-6, device_expert_s=1e-6,
    upload_s=5e-6,
)  # fmt: skip


@dataclass(frozen=True)
class Known:
    costs: Costs


def margin(*arguments, **options) -> float:
    return priced(*arguments, **options).margin


def priced(
    expert: ExpertCosts = EXPERT, *, draft_s: float = 0.0, n_drafted: int = 0, given="auto"
) -> CopyPrice:
    """Return the price after 40 steps that miss one expert of two, while three experts come in each step.

    Without its experts, a verification takes 10 µs.
    """
    price = CopyPrice(given)
    costs = Known(Costs((expert,), 0.0, draft_s, (20e-6,), (10e-6,)))
    view = make_view([8, 8], [8], demand=[[1, 0, 0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 1, 0, 0, 0]], n_verified=1)
    half = np.repeat([[0, -1], [-1, 0]], 4, axis=1)
    half[1, 4] = -1
    for number in range(40):
        # Twelve experts come in every four steps, between two looks.
        slots = half if number // 4 % 2 else -1 - half
        slots = np.where(view.demand > 0, half, slots).astype(np.int32)
        known = replace(view, slot_of=slots, costs=costs, step=number, n_drafted=n_drafted)
        price.observe(known, np.zeros(view.demand.shape))
    return price


def test_a_copy_costs_what_the_cpu_loses_and_what_does_not_fit_into_the_draft():
    busy = 5 / (5 + 10)  # one expert of one token: 4 + 1 µs
    assert margin() == pytest.approx(busy * 4 / (4 + 1 - 1) / USES, rel=0.02)
    assert margin(replace(EXPERT, upload_s=1e-6)) == pytest.approx(margin() / 4, rel=0.02)
    assert margin(draft_s=10e-6, n_drafted=4) == 0  # eight copies in 40 µs
    assert margin(draft_s=1e-6, n_drafted=4) == pytest.approx(margin())  # not even one
    assert margin(replace(EXPERT, upload_s=0.0)) == 0
    assert [margin(given=fixed) for fixed in (0.3, 0)] == [0.3, 0]


def test_recent_uses_count_where_copies_are_dear():
    dear = priced(replace(EXPERT, cpu_expert_s=40e-6, upload_s=40e-6))
    assert (dear.margin, dear.hold) == (0.3, 1)
    assert 0 < priced(replace(EXPERT, upload_s=1e-6)).hold < 1
    assert priced(draft_s=10e-6, n_drafted=4).hold == 0
    assert priced(given=0.3).hold == 0


def test_a_restored_one_asks_the_same_price():
    first, later, fixed = priced(), CopyPrice("auto"), CopyPrice(0.4)
    for each in (later, fixed):
        each.restore(first.state())
    assert (later.margin, later.hold) == (first.margin, first.hold)
    assert fixed.margin == 0.4
    untouched = CopyPrice("auto")
    untouched.restore(CopyPrice("auto").state())
    assert untouched.margin == UNKNOWN


def test_without_costs_the_margin_is_a_guess():
    price = CopyPrice("auto")
    for number in range(9):
        view = replace(make_view([4], [2], demand=[[1, 0, 0, 0]], n_verified=1), step=number)
        price.observe(view, np.zeros((1, 4)))
    assert price.margin == UNKNOWN


def test_on_a_modelled_machine_it_is_as_fast_as_a_good_fixed_margin():
    """The machine's dense part and its experts are of equal weight, so that neither 0 nor 0.9 is good."""
    demand, model = grammar(500).demand(), Model(2_000_000, 0)
    machine = replace(MACHINES["rtx4090"], dense_s=0.2e-3, hand_off_s=1e-6)
    subject = Simulation(machine, model, demand, 30)
    step_s = {
        name: subject.run(scheduler.make(f"logistic:whole=off,margin={name}"), 100).seconds
        for name in ("auto", "0.0", "0.2", "0.4", "0.9")
    }
    assert step_s["auto"] < 1.03 * min(step_s.values())
    assert step_s["auto"] < 0.99 * max(step_s.values())


# These tests cover the learned number of uses that a copy brings.


RESIDENT = np.arange(100).reshape(2, 50) % 2 == 0


def learned(lasts: int, n_step: int = 40 * STEPS) -> float:
    """Return the uses per gain in a text whose probabilities hold for `lasts` steps after a prediction."""
    rng, reuse = np.random.default_rng(3), Reuse(1.5, 8.0)
    chance = rng.permutation(np.linspace(0.05, 0.95, 100)).reshape(2, 50)
    predicted = chance.copy()
    for step in range(n_step):
        if step % STEPS == 0:
            predicted = chance = rng.permutation(chance.ravel()).reshape(2, 50)
        if step % STEPS == lasts:
            chance = rng.permutation(chance.ravel()).reshape(2, 50)
        reuse.observe((rng.random((2, 50)) < chance).astype(np.int32), RESIDENT, predicted)
    return reuse.uses


def test_uses_last_as_long_as_the_order_of_probabilities():
    assert 6 < learned(STEPS) < 8  # a standard error below
    assert 3 < learned(4) < 4
    assert learned(1) == 1.5  # the least estimate


def test_what_tells_nothing_changes_nothing():
    reuse, demand = Reuse(1.5, 8.0), np.ones((2, 50), np.int32)
    reuse.observe(demand, RESIDENT, np.full((2, 50), 0.5))  # no gap
    reuse.observe(demand, np.ones((2, 50), np.bool_), np.full((2, 50), 0.5))  # nothing is absent
    reuse.observe(demand, np.zeros((2, 50), np.bool_), np.full((2, 50), 0.5))  # nothing is resident
    assert reuse.uses == 1.5
    assert not reuse._gaps


def test_a_restored_one_goes_on_as_before():
    rng, first, second = np.random.default_rng(4), Reuse(1.5, 8.0), Reuse(1.5, 8.0)
    chance = rng.permutation(np.linspace(0.05, 0.95, 100)).reshape(2, 50)
    demands = (rng.random((20 * STEPS, 2, 50)) < chance).astype(np.int32)
    for demand in demands:
        first.observe(demand, RESIDENT, chance)
    second.restore(first.state())
    assert second.uses == first.uses > 1.5
    for demand in demands:
        first.observe(demand, RESIDENT, chance)
        second.observe(demand, RESIDENT, chance)
    assert second.uses == first.uses
    second.restore(np.array([np.nan, -1.0, np.inf]))
    assert second.uses == 1.5

"""These tests cover the learned number of uses that a copy brings."""

from __future__ import annotations

import numpy as np

from spac.scheduler.price import STEPS, Reuse

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

"""What keeps costs true, in C++: what its references say, to the bit."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spac.costs.estimator import CostEstimator, StepTimes
from spac.costs.robust import RobustFit, fast_fit
from spac.errors import InputError
from spac.scheduler import Layer
from tests.costs.machine import LAYER_COST, LAYERS, costs, steps, wrong


@settings(deadline=None)
@given(
    st.integers(1, 3),
    st.lists(
        st.tuples(
            st.lists(st.integers(0, 60), min_size=3, max_size=3),
            st.just(0.0) | st.floats(1e-9, 1),
            st.booleans(),
        ),
        max_size=60,
    ),
)
def test_fits(n, measurements):
    units = [1e-3, 0.0, 2e-3][:n]
    plain, fast = RobustFit(units), fast_fit(units)
    for amounts, seconds, stalls in measurements:
        for fit in (plain, fast):
            fit.observe(amounts[:n], seconds * (100 if stalls else 1))
        assert plain.units == fast.units
    assert plain.predict([1, 2, 3][:n]) == fast.predict([1, 2, 3][:n])


def test_amounts_without_units_are_refused():
    with pytest.raises(InputError, match="amount"):
        fast_fit((1e-6,)).observe((1, 2), 1.0)


class Reference(CostEstimator):
    allow_fast = False


def strange(n_layer: int, seed: int):
    """Steps in which any layer may be waited for or not, also none; and numbers of all sizes."""
    rng = np.random.default_rng(seed)
    while True:
        work = np.zeros(n_layer, LAYER_COST)
        waited = rng.random(n_layer) < rng.choice([0.0, 0.3, 0.7, 1.0])
        work["host_ns"] = rng.lognormal(10, 2, n_layer) * waited * (rng.random(n_layer) < 0.8)
        work["wait_ns"] = rng.lognormal(10, 1, n_layer) * waited
        for side in ("host", "device"):
            work[f"{side}_distinct"] = rng.integers(0, 20, n_layer)
            work[f"{side}_activations"] = work[f"{side}_distinct"] * rng.integers(1, 4, n_layer)
        seconds = float(work["host_ns"].sum() + work["wait_ns"].sum()) * 1e-9 + 1e-3 * rng.random()
        yield StepTimes(int(rng.integers(0, 9)), 1e-3 * rng.random(), int(rng.integers(1, 10)), seconds, work)


def check(start, layers, taken):
    plain, fast = Reference(start, layers), CostEstimator(start, layers)
    for step in taken:
        plain.observe(step)
        fast.observe(step)
        assert plain.costs == fast.costs
    return plain.costs


@pytest.mark.parametrize("share", [0.0, 0.25, 0.5, 1.0])
@pytest.mark.parametrize("factor", [0.1, 3.0])
def test_costs_of_a_machine(share, factor):
    true = costs(device_expert_s=30e-6)
    start = wrong(true, itertools.repeat(factor))
    assert check(start, LAYERS, itertools.islice(steps(true, share, 1), 200)) != start


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 150), st.integers(0, 2**32))
def test_costs_of_strange_steps(n_layer, seed):
    """Odd numbers of layers, more than numpy sums in one go, two pools, whole layers among others."""
    pools = [0] * n_layer if n_layer == 1 else [i % 2 for i in range(n_layer)]
    layers = [Layer(str(i), 32, 4, 100_000 * (1 + pool), pool) for i, pool in enumerate(pools)]
    one = costs().experts[0]
    start = replace(costs(), experts=(one, one)[: len(set(pools))], hand_off_s=20e-6)
    check(start, layers, itertools.islice(strange(n_layer, seed), 60))

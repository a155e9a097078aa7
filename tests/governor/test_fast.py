"""What the governor learns and solves in C++ is what its references say, to the bit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spac.costs import Costs as MeasuredCosts
from spac.governor import RooflineGovernor
from spac.governor.acceptance import Rate, fast_rate
from spac.governor.model import Costs, curve, fast_curve
from spac.governor.times import Misses, SizeTimes, fast_size_times
from tests.governor.world import World

CHANCES = st.floats(0, 1)
SECONDS = st.floats(1e-4, 10)


@settings(deadline=None)
@given(
    st.integers(1, 9), st.sampled_from([0.7, 1.0]),
    st.lists(st.tuples(st.integers(0, 9), st.booleans(), st.integers(0, 20_000)), max_size=60),
)  # fmt: skip
def test_rates(n, prior, steps):
    plain, fast = Rate(n, prior), fast_rate(n, prior)
    for n_success, failed, passed in steps:
        n_success = min(n_success, n - failed)
        assert plain.observe(n_success, failed) == fast.observe(n_success, failed)
        if passed > 100:
            plain.age(passed)
            fast.age(passed)
        np.testing.assert_array_equal(plain.estimate(), fast.estimate())


@settings(deadline=None)
@given(
    st.integers(1, 9),
    st.lists(
        st.tuples(st.integers(1, 9), SECONDS, st.booleans(), st.floats(0.3, 3), st.integers(0, 9)),
        max_size=60,
    ),
    st.lists(SECONDS, max_size=12),
    st.lists(st.floats(0, 5), min_size=9, max_size=9),
)  # fmt: skip
def test_times_by_size(n, observations, before, extra):
    plain, fast, given_extra = SizeTimes(n), fast_size_times(n), np.sort(extra)[:n]
    if before:
        plain.start(np.array(before))
        fast.start(np.array(before))
    for step, (size, value, passing, speed, shifted) in enumerate(observations):
        for times in (plain, fast):
            times.add(min(size, n), value, step, passing=passing, speed=speed)
            if shifted == 0:
                times.shift(-0.01 * given_extra)
        assert [plain.has(i + 1) for i in range(n)] == [fast.has(i + 1) for i in range(n)]
        total = plain.estimate(given_extra)
        np.testing.assert_array_equal(total, fast.estimate(given_extra))
        doubts = [times.doubt(total + given_extra, step, speed) for times in (plain, fast)]
        np.testing.assert_array_equal(*doubts)
    np.testing.assert_array_equal(plain.estimate(given_extra), fast.estimate(given_extra))


@settings(deadline=None)
@given(st.integers(1, 16), st.integers(0, 2**32), st.booleans())
def test_curves(n, seed, stops):
    rng = np.random.default_rng(seed)
    go_on = rng.random(n) if stops else np.ones(n)
    costs = Costs(*rng.random(2), np.sort(rng.random(n + 1)), np.sort(rng.random(n + 1)) * 900, rng.random())
    accept = rng.random(n)
    plain, fast = curve(accept, go_on, costs), fast_curve(accept, go_on, costs)
    for name, values in vars(plain).items():
        np.testing.assert_array_equal(values, getattr(fast, name), err_msg=name)


@settings(deadline=None)
@given(st.integers(1, 5), st.integers(1, 200), st.integers(0, 2**32))
def test_misses(n_layer, n_expert, seed):
    rng = np.random.default_rng(seed)
    plain, fast = (Misses(9, fast=each) for each in (False, True))
    for _ in range(12):
        n_token = int(rng.integers(1, 10))
        demand = rng.binomial(n_token, rng.random((n_layer, n_expert)) ** 4).astype(np.int32)
        resident = rng.random(demand.shape) < 0.3
        demand[0, 0], resident[0, 0] = n_token, False
        for misses in (plain, fast):
            misses.add(demand, n_token)
        if rng.random() < 0.6:
            for misses in (plain, fast):
                misses.refresh(resident)
                misses.calibrate(n_token, 3.0)
            assert plain.expected.any()
        np.testing.assert_array_equal(plain.expected, fast.expected)


class Reference(RooflineGovernor):
    allow_fast = False


@pytest.mark.parametrize("measured", [False, True])
@pytest.mark.parametrize("goes_on", [1.0, 0.9])
def test_a_governor_decides_as_its_reference(measured, goes_on):
    """Through its probes, a change of the world, a budget, and misses."""
    costs = MeasuredCosts.guessed([], 9) if not measured else MeasuredCosts(
        (), 1e-3, 2e-3, tuple(0.02 + 0.001 * n for n in range(9)), (0.01,) * 9
    )  # fmt: skip
    told = []
    for kind in (RooflineGovernor, Reference):
        rng = np.random.default_rng(5)
        governor = kind(
            8, budget_s=0.2, costs=costs if measured else None, clock=lambda: 0.0,
            resident=lambda: np.random.default_rng(7).random((4, 64)) < 0.3,
        )  # fmt: skip
        chosen = []
        for accept in (0.9, 0.2, 0.7):
            world = World(
                lambda j, p=accept: p, lambda n: 1e-3 + 2e-3 * n, lambda b: 0.02 + 0.002 * b,
                lambda j: goes_on, rng=np.random.default_rng(3),
            )  # fmt: skip
            for _ in range(200):
                k = governor.choose(10**6)
                step = world.step(k)
                if governor.wants_experts:
                    demand = rng.binomial(step[0] + 1, 0.1, (4, 64)).astype(np.int32)
                    governor.demand(demand, step[0] + 1)
                    governor.observe(*step, int((demand > 0).sum()), 0.005)
                else:
                    governor.observe(*step)
                chosen.append((k, governor.expected))
        told.append(chosen)
    assert told[0] == told[1]
    assert len({k for k, _ in told[0]}) > 3

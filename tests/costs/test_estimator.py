"""Wrong costs become right while an engine runs, in whatever way they are wrong and whatever stalls."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spac.costs import Costs
from spac.costs.estimator import CostEstimator
from spac.costs.robust import _NEEDED, RobustFit, RobustTable
from spac.errors import InputError
from spac.scheduler import Layer
from tests.costs.machine import LAYER_COST, LAYERS, StepTimes, costs, steps, wrong

FACTORS = st.sampled_from((0.1, 0.3, 1.0, 3.0, 10.0))
N_STEPS = 400


def after(start: Costs, true: Costs, share: float, seed: int, n_steps: int = N_STEPS) -> Costs:
    estimator = CostEstimator(start, LAYERS)
    for step in itertools.islice(steps(true, share, seed), n_steps):
        estimator.observe(step, step.n_drafted)
    return estimator.costs


@settings(deadline=None, max_examples=25)
@given(st.lists(FACTORS, min_size=11, max_size=11), st.sampled_from((0.0, 0.2, 0.5)), st.integers(0, 99))
def test_a_wrong_calibration_corrects_itself(factors, share, seed):
    true = costs()
    found = after(wrong(true, iter(factors)), true, share, seed)
    for pairs, distinct in ((12, 10), (24, 17), (36, 22)):
        cpu_s = true.experts[0].cpu_s(pairs, distinct)
        assert found.experts[0].cpu_s(pairs, distinct) == pytest.approx(cpu_s, rel=0.1)
    assert found.experts[0].upload_s == pytest.approx(true.experts[0].upload_s, rel=0.1)
    for n in (1, 4, 8):
        assert found.draft(n) == pytest.approx(true.draft(n), rel=0.1)


@settings(deadline=None, max_examples=10)
@given(FACTORS, st.integers(0, 99))
def test_verifications_follow_what_they_take(factor, seed):
    true, rng = costs(), np.random.default_rng(seed)
    table = RobustTable([factor * time for time in true.verify_s])
    for _ in range(N_STEPS):
        n = int(rng.integers(3, 7))
        table.observe(n, true.verify(n) * rng.lognormal(0, 0.1) * (100 if rng.random() < 0.02 else 1))
    for n in range(1, 10):  # sizes that never came keep their proportion to those that did
        assert table[n] == pytest.approx(true.verify(n), rel=0.12)
    assert table[18] == 2 * table[9]


@pytest.mark.parametrize("factor", [0.1, 1.0, 10.0])
def test_a_device_that_the_cpu_waits_for_is_seen(factor):
    true = costs(device_expert_s=30e-6)
    found = after(wrong(true, itertools.repeat(factor)), true, 0.25, 1, 400)
    assert 15e-6 < found.experts[0].device_expert_s < 60e-6


def test_a_device_behind_the_cpu_costs_at_most_what_hides_it():
    true = costs(device_expert_s=1e-6)
    found = after(wrong(true, itertools.repeat(1000.0)), true, 0.5, 1)
    assert found.experts[0].device_expert_s < 50e-6
    unseen = after(true, true, 0.5, 1)
    assert unseen.experts[0].device_expert_s == pytest.approx(1e-6)


def test_a_machine_that_slows_down_is_followed():
    true, slow = costs(), wrong(costs(), itertools.repeat(3.0))
    estimator = CostEstimator(true, LAYERS)
    for step in itertools.islice(steps(true, 0.2, 1), 100):
        estimator.observe(step, step.n_drafted)
    for step in itertools.islice(steps(slow, 0.2, 2), N_STEPS):
        estimator.observe(step, step.n_drafted)
    found = estimator.costs
    assert found.experts[0].cpu_s(20, 14) == pytest.approx(slow.experts[0].cpu_s(20, 14), rel=0.1)
    assert found.draft(8) == pytest.approx(slow.draft(8), rel=0.1)


@given(st.integers(3, 60), st.floats(10, 1e4))
def test_one_stall_moves_little(at, times):
    calm, stalled = RobustFit((1e-6, 2e-6)), RobustFit((1e-6, 2e-6))
    rng = np.random.default_rng(at)
    for i in range(64):
        amounts = rng.integers(1, 50, 2).tolist()
        seconds = 1e-6 * amounts[0] + 2e-6 * amounts[1]
        calm.observe(amounts, seconds)
        stalled.observe(amounts, seconds * (times if i == at else 1))
    assert stalled.predict((10, 10)) == pytest.approx(calm.predict((10, 10)), rel=0.03)


def test_what_never_varies_apart_keeps_its_proportion():
    fit = RobustFit((1e-6, 3e-6))
    for _ in range(20):
        fit.observe((1, 8), 5e-4)
    assert fit.units[1] / fit.units[0] == pytest.approx(3)
    assert fit.predict((1, 8)) == pytest.approx(5e-4)


def test_nothing_is_learned_from_nothing():
    fit = RobustFit((1e-6,))
    for _ in range(9):
        fit.observe((0,), 1.0)
        fit.observe((4,), 0.0)
    assert fit.units == [1e-6]


def test_pools_have_costs_of_their_own():
    layers = [Layer(str(i), 32, 4, 100_000 * (1 + i % 2), i % 2) for i in range(6)]
    small, large = costs().experts[0], costs(cpu_expert_s=40e-6).experts[0]
    true = Costs((small, large), 2e-4, 3e-4, costs().verify_s, costs().dense_s)
    estimator = CostEstimator(wrong(true, itertools.repeat(5.0)), layers)
    for step in itertools.islice(steps(true, 0.2, 3, layers), N_STEPS):
        estimator.observe(step, step.n_drafted)
    for found, real in zip(estimator.costs.experts, (small, large), strict=True):
        assert found.cpu_s(20, 14) == pytest.approx(real.cpu_s(20, 14), rel=0.1)
    with pytest.raises(InputError, match="pools"):
        CostEstimator(costs(), layers)


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 150), st.integers(0, 2**32))
def test_strange_steps_leave_costs_that_are_times(n_layer, seed):
    """A step may wait for any layers, also for none. There are two pools, and numbers of all sizes."""
    pools = [0] * n_layer if n_layer == 1 else [i % 2 for i in range(n_layer)]
    layers = [Layer(str(i), 32, 4, 100_000 * (1 + pool), pool) for i, pool in enumerate(pools)]
    one, rng = costs().experts[0], np.random.default_rng(seed)
    start = replace(costs(), experts=(one, one)[: len(set(pools))], hand_off_s=20e-6)
    estimator = CostEstimator(start, layers)
    for _ in range(60):
        work = np.zeros(n_layer, LAYER_COST)
        waited = rng.random(n_layer) < rng.choice([0.0, 0.3, 0.7, 1.0])
        work["host_ns"] = rng.lognormal(10, 2, n_layer) * waited * (rng.random(n_layer) < 0.8)
        work["wait_ns"] = rng.lognormal(10, 1, n_layer) * waited
        for side in ("host", "device"):
            work[f"{side}_distinct"] = rng.integers(0, 20, n_layer)
            work[f"{side}_activations"] = work[f"{side}_distinct"] * rng.integers(1, 4, n_layer)
        seconds = float(work["host_ns"].sum() + work["wait_ns"].sum()) * 1e-9 + 1e-3 * rng.random()
        n_drafted, n_verified = int(rng.integers(0, 9)), int(rng.integers(1, 10))
        step = StepTimes(n_drafted, n_verified, work, 1e6 * rng.random(), 1e9 * seconds)
        estimator.observe(step, n_drafted)
    assert estimator.costs != start  # the costs refuse values that are no times


def whole_layer_steps(true: Costs, whole: list[bool], seed: int) -> Iterator[StepTimes]:
    """Yield steps of one token on layers of which some are whole. The CPU does not wait for whole layers.

    Times have 10 % of noise, and 3 % of the waits take half a millisecond longer.
    """
    rng, expert = np.random.default_rng(seed), true.experts[0]
    dense = true.dense(1) / len(whole) - true.hand_off_s
    while True:
        work, idle, total = np.zeros(len(whole), LAYER_COST), 0.0, 0.0
        for i, is_whole in enumerate(whole):
            idle += dense * rng.lognormal(0, 0.1)
            hits = 4 if is_whole else int(rng.integers(5))
            device = expert.device_expert_s * hits
            if is_whole:
                idle += device
                work[i] = (0, 0, 0, 0, hits, hits, 0)
                continue
            wait = idle + true.hand_off_s * rng.lognormal(0, 0.1) + 5e-4 * (rng.random() < 0.03)
            host = expert.cpu_s(4 - hits, 4 - hits)
            work[i] = (host * 1e9, wait * 1e9, 4 - hits, 4 - hits, hits, hits, 0)
            idle, total = max(0.0, device - host), total + wait + host
        yield StepTimes(
            n_drafted=0, n_verified=1, layer_costs=work, draft_ns=0.0, verify_ns=1e9 * (total + idle),
        )  # fmt: skip


@pytest.mark.parametrize("start", [5e-6, 30e-6, 100e-6])
@pytest.mark.parametrize("whole", [[False, True] * 4 + [False] * 16, [True] * 9 + [False] * 6 + [True] * 9])
def test_what_whole_layers_are_spared_is_seen(start, whole):
    """Runs of whole layers show it too. If none lies between layers with waits, nothing is learned."""
    layers = [Layer(f"layer {i}", 32, 4, 100_000, 0) for i in range(len(whole))]
    true = replace(costs(), hand_off_s=30e-6, dense_s=(2e-3,) * 9)
    estimator = CostEstimator(replace(true, hand_off_s=start), layers)
    for step in itertools.islice(whole_layer_steps(true, whole, 1), N_STEPS):
        estimator.observe(step, step.n_drafted)
    closed = any(whole[i] and not whole[i - 1] and False in whole[i:] for i in range(1, len(whole)))
    assert estimator.costs.hand_off_s == pytest.approx(30e-6 if closed else start, rel=0.15)


def test_early_measurements_of_a_size_count_alike():
    table = RobustTable([1.0])
    for seconds in (*[1.0] * _NEEDED, 1.2):
        table.observe(1, seconds)
    assert table[1] == pytest.approx(1 + 0.2 / (_NEEDED + 1))

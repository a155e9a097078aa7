"""The governor learns acceptance by position, times by size, speed, and misses."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spac.governor.acceptance import Rate, optimistic
from spac.governor.times import MachineSpeed, Misses, SizeTimes


def feed(rate, chances, steps, rng):
    """Observe steps whose positions succeed with these chances, each given the one before."""
    for _ in range(steps):
        n = 0
        while n < len(chances) and rng.random() < chances[n]:
            n += 1
        rate.observe(n, n < len(chances))
        rate.estimate()  # the next step is compared with this estimate


def test_acceptance_is_learnt_by_position():
    rng = np.random.default_rng(1)
    rate = Rate(4, 0.7)
    feed(rate, [0.9, 0.5, 0.8, 0.8], 600, rng)
    rates, trials = rate.estimate()
    assert rates == pytest.approx([0.9, 0.5, 0.8, 0.8], abs=0.17)
    assert rates[1] < min(rates[0], rates[2], rates[3])
    assert all(np.diff(trials) < 0)  # later positions are tried more rarely


def test_a_position_that_was_never_tried_is_like_the_others():
    rng = np.random.default_rng(2)
    rate = Rate(6, 0.7)
    feed(rate, [0.3, 0.3], 300, rng)
    rates, trials = rate.estimate()
    assert rates[2:] == pytest.approx([0.3] * 4, abs=0.12)
    assert trials[5] < trials[1] < trials[0]


def test_a_change_of_regime_is_followed_within_tens_of_steps():
    rng = np.random.default_rng(3)
    rate = Rate(8, 0.7)
    feed(rate, [0.2] * 8, 400, rng)
    assert rate.estimate()[0][0] == pytest.approx(0.2, abs=0.12)
    feed(rate, [0.9] * 8, 16, rng)
    assert rate.estimate()[0][0] > 0.6
    feed(rate, [0.2] * 8, 24, rng)
    assert rate.estimate()[0][0] < 0.45


def test_time_without_trials_makes_a_rate_uncertain_and_does_not_move_it():
    rng = np.random.default_rng(4)
    rate = Rate(3, 0.7)
    feed(rate, [0.3, 0.3, 0.3], 300, rng)
    before, seen = rate.estimate()
    rate.age(10_000)
    after, left = rate.estimate()
    assert after == pytest.approx(before, abs=0.12)
    assert (left < seen).all()
    assert (optimistic(after, left, np.zeros(3)) > optimistic(before, seen, np.zeros(3))).all()


def test_an_old_rate_may_be_anything():
    rates, trials = np.array([0.1, 0.9]), np.array([50.0, 50.0])
    assert optimistic(rates, trials, np.zeros(2)) == pytest.approx(rates, abs=0.06)
    assert optimistic(rates, trials, np.ones(2)).tolist() == [1.0, 1.0]


@settings(max_examples=50)
@given(
    st.lists(st.tuples(st.integers(1, 9), st.floats(1e-3, 10), st.booleans()), min_size=1, max_size=60),
    st.lists(st.floats(0, 5), min_size=9, max_size=9),
)
def test_times_grow_with_the_size(observations, extra):
    times, extra = SizeTimes(9), np.sort(extra)
    for step, (size, value, passing) in enumerate(observations):
        times.add(size, value, step, passing=passing)
    total = times.estimate(extra) + extra
    assert (np.diff(total) >= -1e-9).all()
    doubt = times.doubt(total, len(observations), 1.0)
    assert ((doubt >= 0) & (doubt <= 0.6)).all()


def test_a_time_is_the_median_and_what_was_seen_in_passing_gives_way():
    times = SizeTimes(3)
    times.add(2, 9.0, 0, passing=True)
    assert times.estimate(np.zeros(3))[1] == 9.0
    times.add(2, 100.0, 1)  # an interruption; of two times the shorter one holds
    assert times.estimate(np.zeros(3))[1] == 9.0
    for step, value in enumerate([2.0, 2.1, 1.9, 100.0, 2.0, 2.2, 1.8], 2):
        times.add(2, value, step)
    times.add(2, 1.0, 20, passing=True)
    assert times.estimate(np.zeros(3))[1] == pytest.approx(2.0, abs=0.1)


def test_between_and_beyond_the_sizes_seen():
    times = SizeTimes(6)
    for size, value in ((1, 1.0), (3, 3.0)):
        for step in range(3):
            times.add(size, value, step)
    assert times.estimate(np.zeros(6)).tolist() == [1, 2, 3, 4, 5, 6]
    doubt = times.doubt(times.estimate(np.zeros(6)), 3, 1.0)
    assert doubt[1] == pytest.approx(0.5)  # this size may take as little time as one token
    slowed = times.doubt(times.estimate(np.zeros(6)), 3, 4.0)
    assert slowed[2] == pytest.approx(1 - (1 - doubt[2]) / 4)  # only the others may have become slower


def test_times_from_before_lend_their_shape():
    times = SizeTimes(5)
    times.start(np.array([1.0, 2.0, 8.0, 9.0]))
    assert times.estimate(np.zeros(5))[:4].tolist() == [1, 2, 8, 9]
    for step in range(3):
        times.add(2, 4.0, step)
    assert times.estimate(np.zeros(5))[:4].tolist() == [2, 4, 16, 18]


def test_the_speed_is_everybodys():
    speed = MachineSpeed()
    for _ in range(60):
        speed.observe(3.0, 2.0)
    assert speed.factor == pytest.approx(1.5, rel=0.03)
    speed.observe(1e6, 2.0)  # one interruption moves the speed by a twentieth at most
    assert speed.factor < 1.5 * 1.06
    for _ in range(4):
        speed.observe(1.0, 2.0)
    assert speed.factor == pytest.approx(0.5, rel=0.05)  # the speed has changed altogether


def test_misses_follow_demand_and_residency():
    rng = np.random.default_rng(6)
    chance = rng.uniform(0, 0.5, (4, 32))
    resident = rng.random((4, 32)) < 0.5
    misses = Misses(9)
    for _ in range(50):
        misses.add(rng.binomial(8, chance).astype(np.int32), 8)
        misses.refresh(resident)
    absent = chance[~resident]
    exact = [(1 - (1 - absent) ** b).sum() for b in range(1, 10)]
    assert misses.expected == pytest.approx(exact, rel=0.1)
    misses.add(np.zeros((4, 32), np.int32), 1)
    misses.refresh(np.ones((4, 32), bool))
    assert not misses.expected.any()


def test_predicted_windows_take_the_place_of_shares():
    """All tokens of a draft want the same experts, which shares of the past cannot tell."""
    misses = Misses(5)
    misses.add(np.full((2, 8), 2, np.int32), 4)
    misses.refresh(np.zeros((2, 8), bool))
    guessed = misses.expected.copy()
    assert guessed[2] > guessed[0]
    for _ in range(20):
        misses.foresee(np.array([4.0, 4.0, 4.0]))
    assert misses.expected[:3] == pytest.approx([4, 4, 4])
    assert misses.expected[3:] == pytest.approx(4 * guessed[3:] / guessed[2])
    misses.foresee(np.array([8.0, 9.0, 9.0]))
    assert 4 < misses.expected[0] < 8, "a mean over drafts"
    for _ in range(400):
        misses.calibrate(3, 2.0)
        misses.add(np.full((2, 8), 2, np.int32), 4)
        misses.refresh(np.zeros((2, 8), bool))
    assert misses.expected[2] == pytest.approx(2, rel=0.1)


def test_misses_are_scaled_to_what_is_counted():
    misses = Misses(4)
    misses.add(np.full((2, 8), 2, np.int32), 4)
    misses.refresh(np.zeros((2, 8), bool))
    before = misses.expected.copy()
    for _ in range(200):
        misses.add(np.full((2, 8), 2, np.int32), 4)
        misses.calibrate(4, float(before[3]) / 2)
        misses.refresh(np.zeros((2, 8), bool))
    assert misses.expected == pytest.approx(before / 2, rel=0.1)

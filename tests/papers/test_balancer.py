"""The balancer agrees with a trial of every threshold."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from spac.costs import ExpertCosts
from spac.papers.balancer import (
    Averages,
    Levels,
    LevelSlots,
    Pools,
    Problem,
    Times,
    as_printed,
    best_first,
    solve,
)

SECONDS = st.floats(0, 10)


@given(st.tuples(st.integers(1, 5), st.integers(1, 8)), st.data())
def test_solve_is_exact(shape, data):
    draw, seconds = data.draw, arrays(np.float64, shape, elements=SECONDS)
    problem = Problem(draw(seconds), draw(seconds), draw(arrays(np.bool_, shape)))
    chosen, apart = solve(problem), np.abs(problem.t_cpu - problem.t_gpu)
    assert chosen.dtype == np.int32
    n_level = problem.t_cpu.shape[1]
    for layer, threshold in enumerate(chosen):
        allowed = [k for k in range(1, n_level + 1) if problem.feasible[layer, k - 1]]
        best = min(allowed, key=lambda k, row=layer: (apart[row, k - 1], k), default=n_level)
        assert threshold == best


def r_c(averages: Averages) -> np.ndarray:
    """Return the share of the pairs left to the CPU, float64 [L, K]."""
    return 1.0 - averages._hot[0]


def test_the_papers_example_of_ratios():
    """Section C.1: two tokens want experts {0, 3} and {2, 3}; expert 3 is hot."""
    utility, demand = np.array([[0, 0, 0, 1]], np.int32), np.array([[1, 0, 1, 2]], np.int32)
    averages = Averages(1, 1)
    averages.observe(Levels(utility, 1), demand)
    assert r_c(averages).item() == 1 - 2 / 4
    assert averages._hot[1].item() == pytest.approx(1 / 3)


def observed(utility: np.ndarray, n_level: int, *demands: np.ndarray) -> Averages:
    averages = Averages(len(utility), n_level)
    for demand in demands:
        averages.observe(Levels(utility, r_c(averages).shape[1]), demand)
    return averages


@st.composite
def situations(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray, int]:
    """Draw utility, demand, resident [L, N], pools [L], pool_slots that hold the residents, and K."""
    shape, n_level = (draw(st.integers(1, 4)), draw(st.integers(1, 6))), draw(st.integers(1, 5))
    utility = draw(arrays(np.int32, shape, elements=st.integers(0, n_level)))
    demand = draw(arrays(np.int32, shape, elements=st.integers(0, 9)))
    resident = draw(arrays(np.bool_, shape))
    pools = draw(arrays(np.int32, shape[0], elements=st.integers(0, 1)))
    held = np.array([resident[pools == pool].sum() for pool in (0, 1)])
    spare = draw(arrays(np.int32, 2, elements=st.integers(0, 5)))
    return utility, demand, resident, pools, (held + spare).astype(np.int32), n_level


def times(n_layer: int, upload: float = 2.0) -> Times:
    return Times.of([ExpertCosts(0.0, 0.0, 1.0, 1.0, 0.5, upload)] * n_layer, 0.25)


@given(situations(), st.integers(0, 8))
def test_the_printed_problem_is_the_papers(situation, n_drafted):
    utility, demand, resident, pools, pool_slots, n_level = situation
    averages = observed(utility, n_level, demand)
    slots = LevelSlots.of(Levels(utility, n_level), resident, Pools(pools, pool_slots))
    problem = as_printed(averages, slots, times(len(utility)), n_drafted)
    for layer in range(len(utility)):
        in_pool = pools == pools[layer]
        for k in range(1, n_level + 1):
            hot = utility[layer] >= k
            pairs, used = demand[layer], demand[layer] > 0
            assert problem.t_cpu[layer, k - 1] == pytest.approx(1.0 * pairs[~hot].sum())  # Eq. 7
            assert problem.t_gpu[layer, k - 1] == pytest.approx(0.5 * (used & hot).sum())  # Eq. 8
            n = (hot & ~resident[layer]).sum()
            window = max(pairs[~hot].sum(), 0.5 * (used & hot).sum()) + n_drafted * 0.25 / len(utility)
            in_time = 2.0 * n <= window  # Eq. 10
            evictable = (resident[in_pool] & (utility[in_pool] < k)).sum()
            free = pool_slots[pools[layer]] - resident[in_pool].sum()
            if abs(2.0 * n - window) > 1e-9:
                assert problem.feasible[layer, k - 1] == (in_time and n <= free + evictable)  # Eq. 11


@given(situations(), st.integers(0, 8))
def test_what_fits_whole_is_the_printed_problem(situation, n_drafted):
    utility, demand, resident, pools, _, n_level = situation
    averages = observed(utility, n_level, demand)
    room_for_all = np.full(2, utility.size, np.int32)
    slots = LevelSlots.of(Levels(utility, n_level), resident, Pools(pools, room_for_all))
    free_link = times(len(utility), upload=0.0)
    printed = as_printed(averages, slots, free_link, n_drafted)
    clipped = best_first(averages, slots, free_link, n_drafted)
    np.testing.assert_allclose(clipped.t_cpu, printed.t_cpu, atol=1e-9)
    np.testing.assert_allclose(clipped.t_gpu, printed.t_gpu, atol=1e-9)


@given(situations(), st.integers(0, 8))
def test_best_first_never_forbids_and_a_lower_threshold_never_burdens_the_cpu(situation, n_drafted):
    utility, demand, resident, pools, pool_slots, n_level = situation
    averages = observed(utility, n_level, demand)
    slots = LevelSlots.of(Levels(utility, n_level), resident, Pools(pools, pool_slots))
    problem = best_first(averages, slots, times(len(utility), upload=0.0), n_drafted)
    assert problem.feasible.all()
    assert (np.diff(problem.t_cpu, axis=1) >= -1e-9).all()
    assert (np.diff(problem.t_gpu, axis=1) <= 1e-9).all()
    assert (problem.t_cpu >= -1e-9).all()


@given(situations(), st.integers(1, 8))
def test_averages_are_plain_means_while_warming_up(situation, n_step):
    utility, demand, _, _, _, n_level = situation
    rng = np.random.default_rng(n_step)
    demands = [rng.permuted(demand, axis=1) for _ in range(n_step)]
    averages = observed(utility, n_level, *demands)
    for layer, row in enumerate(utility):
        for k in range(1, n_level + 1):
            cold = [each[layer][row < k].sum() / max(1, each[layer].sum()) for each in demands]
            used = [(each[layer] > 0) for each in demands]
            hot = [(u & (row >= k)).sum() / max(1, u.sum()) for u in used]
            nothing = np.mean([each[layer].sum() == 0 for each in demands])
            assert r_c(averages)[layer, k - 1] == pytest.approx(np.mean(cold) + nothing)
            assert averages._hot[1][layer, k - 1] == pytest.approx(np.mean(hot))

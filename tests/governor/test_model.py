"""The roofline equals sums that are written out, and its argmax equals that of trying all lengths."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spac.governor.model import StepCosts, best, curve, longest_within, tokens

chances = st.floats(0, 1)
seconds = st.floats(1e-6, 10)


@st.composite
def models(draw):
    n = draw(st.integers(1, 12))
    kinds = ((chances, n), (chances | st.just(1.0), n), (seconds, n + 1), (st.floats(0, 500), n + 1))
    lists = [draw(st.lists(each, min_size=size, max_size=size)) for each, size in kinds]
    accept, go_on, verify, misses = map(np.array, lists)
    costs = StepCosts(draw(st.floats(0, 1)), draw(st.floats(0, 1)), verify, misses, draw(st.floats(0, 1e-2)))
    return accept, go_on, costs


def written_out(accept, go_on, costs, k):
    """Return (tokens, seconds, misses) of a step at draft length k, summed over all that can happen in it."""
    total = np.zeros(3)
    reached = 1.0
    for n in range(k + 1):
        chance = reached * (1 - go_on[n] if n < k else 1.0)
        reached *= go_on[n] if n < k else 1.0
        expected = 1 + sum(np.prod(accept[:i]) for i in range(1, n + 1))
        time = (costs.draft_base + costs.draft_token * n) * (k > 0)
        time += costs.verify[n] + costs.price * costs.misses[n]
        total += chance * np.array([expected, time, costs.misses[n]])
    return total


@given(models())
def test_the_curve_is_the_mean_over_what_can_happen(model):
    accept, go_on, costs = model
    points = curve(accept, go_on, costs)
    for k in range(len(accept) + 1):
        expected = written_out(accept, go_on, costs, k)
        assert (points.tokens[k], points.cycle[k], points.missed[k]) == pytest.approx(expected, abs=1e-9)
        assert points.compute[k] + costs.price * points.missed[k] == pytest.approx(points.cycle[k])


@given(models(), st.integers(0, 12), st.integers(0, 12))
def test_the_best_length_is_that_of_trying_all(model, k_min, k_max):
    accept, go_on, costs = model
    k_max = min(k_max, len(accept))
    points = curve(accept, go_on, costs)
    allowed = [0, *range(max(1, k_min), k_max + 1)]
    chosen = best(points.theta, k_max, k_min)
    rates = {k: written_out(accept, go_on, costs, k) for k in allowed}
    assert chosen in allowed
    assert rates[chosen][0] / rates[chosen][1] >= max(t / s for t, s, _ in rates.values()) * (1 - 1e-9)
    assert chosen == max(allowed, key=lambda k: (points.theta[k], -k))


@given(models(), st.floats(0, 20))
def test_no_draft_within_the_budget_takes_longer(model, budget):
    accept, go_on, costs = model
    points = curve(accept, go_on, costs)
    k_slo = longest_within(points, budget)
    parts = costs.verify + costs.price * costs.misses
    whole = [parts[0]]  # the longest step that a draft of k tokens may cause
    for k in range(1, len(accept) + 1):
        stopped = [costs.draft_base + costs.draft_token * n + parts[n] for n in range(k + 1)]
        whole.append(max(stopped))
    assert points.longest == pytest.approx(whole)
    assert all(time <= budget * (1 + 1e-9) for time in whole[1 : k_slo + 1])
    assert k_slo == len(accept) or whole[k_slo + 1] > budget * (1 - 1e-9) or whole[0] > budget * (1 - 1e-9)
    assert points.cycle[best(points.theta, k_slo)] <= max(budget, whole[0]) * (1 + 1e-9)


def test_the_targets_own_token_counts():
    """Eq. 2 as printed would have 0 tokens at k = 0, so that k = 0 could never win."""
    assert tokens(np.array([0.5, 0.5]), np.ones(2)).tolist() == [1.0, 1.5, 1.75]
    free = StepCosts(0.0, 0.0, np.ones(3), np.zeros(3), 0.0)
    doubled = StepCosts(0.0, 0.0, np.array([1.0, 2.0, 3.0]), np.zeros(3), 0.0)
    half = np.full(2, 0.5)
    assert best(curve(half, np.ones(2), free).theta, 2) == 2
    assert best(curve(half, np.ones(2), doubled).theta, 2) == 0


def test_a_budget_that_nothing_fits_into_leaves_decoding_without_draft():
    costs = StepCosts(0.0, 0.1, np.ones(4), np.zeros(4), 0.0)
    points = curve(np.ones(3), np.ones(3), costs)
    assert longest_within(points, 0.5) == 0
    assert longest_within(points, 1.25) == 2
    assert longest_within(points, 100.0) == 3

"""T_draft has one learner, which starts with the first draft and which the governor reads."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spac.costs import Costs
from spac.costs.draft_time import DraftTime
from spac.costs.estimator import CostEstimator
from spac.governor import RooflineGovernor
from tests.costs.machine import LAYERS, costs, steps


def test_a_draft_costs_a_base_and_a_time_per_token():
    rng = np.random.default_rng(5)
    draft = DraftTime()
    for _ in range(200):
        n = int(rng.integers(1, 9))
        draft.observe(n, n, (2 + 0.5 * n) * (10 if rng.random() < 0.03 else 1) * rng.uniform(0.95, 1.05))
    assert draft.seconds(4) == pytest.approx(4.0, rel=0.1)
    assert draft.seconds(8) == pytest.approx(6.0, rel=0.15)


def test_drafts_of_one_length_are_taken_as_proportional_at_first():
    draft = DraftTime()
    for _ in range(100):
        draft.observe(4, 4, 2.0)
    assert draft.base_s == pytest.approx(0.0, abs=0.05)
    assert draft.token_s == pytest.approx(0.5, abs=0.02)


@given(st.lists(st.tuples(st.integers(1, 16), st.integers(0, 16), st.floats(1e-9, 1e3)), min_size=1))
def test_no_time_is_below_zero(drafts):
    draft = DraftTime()
    for asked, drafted, seconds in drafts:
        draft.observe(asked, min(asked, drafted), seconds)
        assert draft.base_s >= 0
        assert draft.token_s >= 0


def test_drafts_that_stop_at_once_leave_the_time_per_token():
    draft = DraftTime(0.0, 0.5)
    for i in range(200):
        n = 4 if i % 10 == 0 else 0
        draft.observe(8, n, 1.0 + 0.2 * n)
    assert draft.seconds(0) == pytest.approx(1.0, rel=0.05)
    assert draft.seconds(4) == pytest.approx(1.8, rel=0.05)


def test_a_draft_that_first_catches_up_does_not_count():
    draft = DraftTime()
    for n, seconds in [(2, 2.0), (0, 0.0), (2, 9.0), (2, 2.0)] * 20:
        draft.observe(n, n, seconds)
    assert draft.seconds(2) == pytest.approx(2.0)


def test_the_governor_reads_what_the_costs_have_learned():
    """A governor with the engine's estimate observes drafts without learning their times anew."""
    true = costs()
    estimator = CostEstimator(Costs.guessed(LAYERS), LAYERS, measured=False)
    assert estimator.costs.draft_token_s == Costs.guessed(LAYERS).draft_token_s
    governor = RooflineGovernor(8, draft_time=estimator.draft_time, clock=lambda: 0.0)
    for step in itertools.islice(steps(true, 0.2, 1, stalls=0.0), 60):
        governor.choose(100)
        estimator.observe(step, step.n_drafted)
        before = estimator.costs.draft(8)
        draft_s, verify_s = step.draft_ns * 1e-9, step.verify_ns * 1e-9
        governor.observe(step.n_drafted, 0, draft_s, draft_s + verify_s)
        assert estimator.costs.draft(8) == before
    assert before == pytest.approx(true.draft(8), rel=0.1)

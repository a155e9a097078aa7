"""Cost models fit the measured costs in either form, and outliers have little effect."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spac.errors import InputError
from spac.scheduler.cost import UnitCosts, fit, step_seconds

TIMES = st.floats(1e-6, 1e-2)


def measurements(n: int = 60) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    distinct = rng.integers(1, 40, n)
    return distinct + rng.integers(0, 60, n), distinct


@given(TIMES, TIMES, st.booleans())
def test_a_fit_finds_what_made_the_measurements(per_pair, per_expert, interrupted):
    pairs, distinct = measurements()
    seconds = per_pair * pairs + per_expert * distinct
    if interrupted:
        seconds[[3, 30]] += 1.0
    found = fit(pairs, distinct, seconds)
    assert found.per_pair == pytest.approx(per_pair, rel=0.02, abs=2e-6)
    assert found.per_expert == pytest.approx(per_expert, rel=0.02, abs=2e-6)
    assert found.fixed == 0


@given(st.floats(0, 1e-3), TIMES, TIMES)
def test_the_richer_model_never_explains_less(fixed, per_pair, per_expert):
    pairs, distinct = measurements()
    noise = 1 + 0.1 * np.random.default_rng(1).standard_normal(len(pairs))
    seconds = (fixed + per_pair * pairs + per_expert * distinct) * noise
    paper = fit(pairs, distinct, seconds, by_expert=False)
    both = fit(pairs, distinct, seconds)
    assert paper.per_expert == 0
    off, off_paper = (np.abs(found.predict(pairs, distinct) - seconds).mean() for found in (both, paper))
    assert off <= 1.05 * off_paper


def test_no_time_is_negative():
    pairs, distinct = measurements()
    found = fit(pairs, distinct, 1e-3 * distinct - 1e-6 * pairs, fixed=True)
    assert min(found.fixed, found.per_pair, found.per_expert) >= 0


def test_a_step_costs_what_its_slower_side_costs():
    counts = np.array([[[3, 1, 0], [2, 2, 0]]], np.int32)
    resident = np.array([[[True, False, True], [True, True, False]]])
    costs = [UnitCosts(cpu_pair=1, cpu_expert=10, gpu_expert=4, upload=0)] * 2
    assert step_seconds(counts, resident, costs).tolist() == [max(11, 4) + max(0, 8)]


def test_what_cannot_be_a_time_is_refused():
    with pytest.raises(InputError, match="gpu_expert"):
        UnitCosts(cpu_pair=1, gpu_expert=float("nan"), upload=0)
    with pytest.raises(InputError, match="at least 8"):
        fit(np.ones(3), np.ones(3), np.ones(3))

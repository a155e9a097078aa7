"""A plan's wishes beside a verification's demand: counted in C++ as in numpy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spac import _core
from spac.errors import InputError
from spac.scheduler import Plan
from spac.stats.prediction import counted


@given(st.integers(1, 5), st.integers(1, 70), st.integers(0, 2**32))
def test_counts(n_layer, n_expert, seed):
    rng = np.random.default_rng(seed)
    demand = rng.binomial(6, 0.2, (n_layer, n_expert)).astype(np.int32)
    exists = np.arange(n_expert) < rng.integers(1, n_expert + 1, n_layer)[:, None]
    priority = rng.integers(-3, 4, demand.shape).astype(np.int32)
    plan = Plan(priority, rng.integers(-3, 4, n_layer).astype(np.int32))
    plain = counted(demand, plan, exists, fast=False)
    assert counted(demand, plan, exists) == plain
    some = Plan(plan.priority, plan.threshold, rng.random(n_layer) < 0.5)  # rows that it leaves alone
    assert counted(demand, some, exists) == counted(demand, some, exists, fast=False)


def test_shapes_that_differ_are_refused():
    demand, threshold = np.zeros((2, 3), np.int32), np.zeros(2, np.int32)
    with pytest.raises(InputError, match="threshold"):
        _core.hot_cold(demand, demand, threshold[:1], np.ones((2, 3), np.bool_))
    with pytest.raises(InputError, match="demand"):
        _core.hot_cold(demand.T, demand, threshold, np.ones((2, 3), np.bool_))

"""Rows of sums are bounded in number and lose nothing."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from spac.stats.series import Series


@given(st.lists(st.integers(0, 1000), max_size=300), st.sampled_from([2, 4, 8, 16]))
def test_rows_are_sums_of_consecutive_steps(values, capacity):
    series = Series(2, capacity)
    for value in values:
        series.add((1, value))
    rows, described = series.rows, series.described
    assert len(rows) == len(described["steps"]) <= capacity
    assert len(values) == sum(described["steps"])
    assert rows[:, 0].tolist() == described["steps"]
    ends = np.cumsum([0, *described["steps"]])
    for row, start, end in zip(rows, ends, ends[1:], strict=False):
        assert row[1] == sum(values[start:end])
    # Values are merged no more than needed. The next finer rows would not have fitted.
    if described["per_row"] > 1:
        assert len(values) > capacity * described["per_row"] / 2

"""Rows of sums: bounded, and nothing lost."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from spac.stats.series import Series


@given(st.lists(st.integers(0, 1000), max_size=300), st.sampled_from([2, 4, 8, 16]))
def test_rows_are_sums_of_consecutive_steps(values, capacity):
    series = Series(2, capacity)
    for value in values:
        series.add((1, value))
    rows, told = series.rows, series.told
    assert len(rows) == len(told["steps"]) <= capacity
    assert series.n == len(values) == sum(told["steps"])
    assert rows[:, 0].tolist() == told["steps"]
    ends = np.cumsum([0, *told["steps"]])
    for row, start, end in zip(rows, ends, ends[1:], strict=False):
        assert row[1] == sum(values[start:end])
    # No more is merged than has to be: the next finer rows would not have fitted.
    if told["per_row"] > 1:
        assert len(values) > capacity * told["per_row"] / 2

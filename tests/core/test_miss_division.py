"""The division of a layer's missing experts between CPU and link takes the least time of all divisions."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from spac import _core

TIMES = st.integers(0, 40).map(float)
COSTS = st.tuples(TIMES, TIMES, TIMES, TIMES, TIMES, TIMES)
ROWS = st.lists(st.integers(1, 9), max_size=7).map(lambda rows: sorted(rows, reverse=True))


def layer_ns(costs, on_cpu, n_link, n_resident):
    """Return the time of a layer: T = max(T_cpu, T_link + T_device)."""
    cpu_layer, cpu_expert, cpu_pair, link_layer, link_expert, device_expert = costs
    cpu = cpu_layer + cpu_expert * len(on_cpu) + cpu_pair * sum(on_cpu) if on_cpu else 0.0
    link = link_layer + link_expert * n_link if n_link else 0.0
    return max(cpu, link + device_expert * (n_resident + n_link))


@given(COSTS, ROWS, st.integers(0, 5), st.integers(0, 8))
def test_no_other_set_is_faster(costs, rows, n_resident, most):
    n = _core.experts_over_link(costs, rows, n_resident, most)
    assert 0 <= n <= min(most, len(rows))
    every = {
        size: [
            layer_ns(costs, [rows[i] for i in range(len(rows)) if i not in chosen], size, n_resident)
            for chosen in combinations(range(len(rows)), size)
        ]
        for size in range(min(most, len(rows)) + 1)
    }
    taken = layer_ns(costs, rows[n:], n, n_resident)
    assert taken == min(map(min, every.values()))
    assert all(min(every[size]) > taken for size in range(n))  # no division with fewer copies is as fast


def test_a_slow_link_gets_nothing_and_a_slow_cpu_keeps_nothing():
    rows = [4, 2, 1]
    assert _core.experts_over_link((0, 1, 1, 0, 1000, 0), rows, 2, 3) == 0
    assert _core.experts_over_link((0, 1000, 1, 0, 1, 0), rows, 2, 3) == 3
    assert _core.experts_over_link((0, 1000, 1, 0, 1, 0), rows, 2, 1) == 1
    assert _core.experts_over_link((0, 10, 0, 0, 10, 0), [1] * 8, 0, 8) == 4

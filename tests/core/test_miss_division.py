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


@given(st.floats(0.2, 5), st.floats(0.2, 5), st.integers(0, 40), st.data())
def test_measured_times_lead_to_the_division_by_true_costs(cpu_error, device_error, n_resident, data):
    """Both sides take other times than the costs say, each by a factor of its own."""
    rows = sorted(data.draw(st.lists(st.integers(1, 30), min_size=20, max_size=60)), reverse=True)
    given_costs = (0.0, 1000.0, 100.0, 0.0, 2000.0, 20.0)
    true = tuple(cost * (cpu_error if i < 3 else device_error) for i, cost in enumerate(given_costs))

    def sides_ns(n_link):
        cpu, link = layer_ns(true, rows[n_link:], 0, 0), layer_ns(true, [], n_link, n_resident)
        return cpu, link

    balance = _core.MissBalance()
    for _ in range(60):
        n_link, cpu_ns, device_ns = balance.divide(given_costs, rows, n_resident)
        cpu, device = sides_ns(n_link)
        balance.note_cpu(cpu_ns, round(cpu))
        seen = device > cpu  # Otherwise the host ends last, and sees only that the device took no longer.
        balance.note_device(device_ns, round(max(cpu, device)), seen)
    best = min(max(sides_ns(n)) for n in range(len(rows) + 1))
    expert = max(layer_ns(true, rows[:1], 0, 0), true[4])  # The search for the end goes by whole experts.
    assert max(sides_ns(balance.divide(given_costs, rows, n_resident)[0])) <= 1.25 * best + expert


def test_a_time_that_was_wrong_is_not_believed_for_good():
    costs, rows = (0.0, 1000.0, 0.0, 0.0, 1000.0, 0.0), [1] * 40
    balance = _core.MissBalance()
    balance.note_device(1.0, 10**9, True)
    for _ in range(30):
        n_link, cpu_ns, device_ns = balance.divide(costs, rows, 0)
        balance.note_cpu(cpu_ns, 1000 * (40 - n_link))
        balance.note_device(device_ns, 1000 * max(n_link, 40 - n_link), n_link > 40 - n_link)
    assert 18 <= balance.divide(costs, rows, 0)[0] <= 22

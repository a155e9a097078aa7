"""The CPU's waits give the device's time: found where it shows, bounded where it hides, unmoved by stalls."""

from __future__ import annotations

import numpy as np
import pytest

from spac.costs.device_time import DeviceTime

N_LAYER = 48
USUAL = 100e-6


def learned(true: float, start: float, *, host_s: float, stalls: float, n_steps: int = 120) -> float:
    """Return the learned seconds of an expert.

    Each step has `N_LAYER` layers with 29 experts, 5 to 25 of them on the device. host_s: seconds of each
    other expert, which the CPU computes. stalls: the share of waits that take 1 ms longer.
    """
    rng = np.random.default_rng(1)
    subject = DeviceTime([start], [np.ones(N_LAYER, np.bool_)])
    usual = USUAL
    for _ in range(n_steps):
        distinct = rng.integers(5, 26, N_LAYER - 1).astype(np.float64)
        host = host_s * (29 - distinct) * np.exp(0.1 * rng.standard_normal(N_LAYER - 1))
        after = USUAL * np.exp(0.1 * rng.standard_normal(N_LAYER - 1))
        after += np.maximum(true * distinct - host, 0) + 1e-3 * (rng.random(N_LAYER - 1) < stalls)
        usual = subject.observe_waits(distinct, host, after, np.ones(N_LAYER - 1, np.bool_), usual)
    assert usual == pytest.approx(USUAL, rel=0.2 if true < host_s else 1.0)
    return subject.units[0]


@pytest.mark.parametrize("stalls", [0.0, 0.03, 0.2])
def test_a_fast_device_is_not_taken_for_a_slow_one(stalls):
    """An expert takes 50 µs on the CPU. A device that seemed as slow would get no experts."""
    assert learned(3e-6, 4e-6, host_s=50e-6, stalls=stalls) < 9e-6
    # The CPU hides this time, so it is not known.
    assert learned(3e-6, 400e-6, host_s=50e-6, stalls=stalls) < 15e-6


@pytest.mark.parametrize("start", [1e-6, 50e-6, 2e-3])
def test_a_device_that_is_waited_for_is_measured(start):
    assert learned(50e-6, start, host_s=20e-6, stalls=0.05) == pytest.approx(50e-6, rel=0.25)


def test_what_is_hidden_stays_as_it_was():
    assert learned(3e-6, 2e-6, host_s=500e-6, stalls=0.0) == 2e-6


def test_steps_of_the_device_alone_are_timed_whole():
    members = [np.arange(8) < 3, np.arange(8) >= 3]
    subject = DeviceTime([1e-6, 2e-6], members)
    distinct = np.full(8, 5.0)
    for _ in range(20):
        subject.observe_total(distinct, 8 * (3 * 1e-6 + 5 * 2e-6) * 5)
    assert subject.units == pytest.approx([8e-6, 16e-6])
    subject.observe_total(np.zeros(8), 1.0)  # without experts a time says nothing
    subject.observe_total(distinct, -1.0)
    assert subject.units == pytest.approx([8e-6, 16e-6])

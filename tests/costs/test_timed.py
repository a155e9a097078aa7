"""Timed batches give unit times."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from spac.costs.in_use import spares_hand_offs
from spac.profile.probe import Decode
from spac.profile.timed import Timed, device_time, hand_off_time
from tests.costs.machine import LAYER_COST

N_LAYER, HOST_S = 6, 40e-6


def timed(distinct: int, whole: np.ndarray, device_s: float, hand_off_s: float) -> Timed:
    """Return a batch with so many experts in every layer, on the CPU except in whole layers. Noise does no
    harm."""
    rng = np.random.default_rng(distinct)
    found = Timed(np.zeros(1, np.int32))
    for _ in range(9):
        layers, seconds = np.zeros(N_LAYER, LAYER_COST), 1e-3 + 1e-5 * distinct
        for i in range(N_LAYER):
            host = 0.0 if whole[i] else HOST_S * distinct
            seconds += device_s * distinct if whole[i] else host + hand_off_s
            on_host, on_device = (0, distinct) if whole[i] else (distinct, 0)
            layers[i] = (host * 1e9, 0, on_host, on_host, on_device, on_device, 0)
        found.decodes.append(Decode(seconds * rng.lognormal(0, 1e-3), layers))
    return found


@pytest.mark.parametrize("hand_off_s", [0.0, 35e-6])
def test_the_device_and_the_hand_off_are_separated(hand_off_s):
    whole = np.array([True, False, True, True, False, False])
    with_all, without = (
        [timed(n, residents, 3e-6, hand_off_s) for n in range(2, 14)]
        for residents in (whole, np.zeros(N_LAYER, np.bool_))
    )
    device = device_time(without, with_all, whole)
    assert device == pytest.approx(3e-6, rel=0.2)
    assert hand_off_time(without, with_all, whole, device) == pytest.approx(hand_off_s, abs=2e-6)


@pytest.mark.parametrize(
    ("masks", "tried", "spared"),
    [("", True, True), ("", False, False), ("no-masks", True, False), ("masks", False, True)],
)
def test_where_the_device_reads_no_masks_no_hand_off_is_spared(monkeypatch, masks, tried, spared):
    """On such a device the CPU lists the resident experts, so every layer waits for the CPU."""
    monkeypatch.setenv("SPAC_FORM", masks)
    assert spares_hand_offs(SimpleNamespace(device=SimpleNamespace(reads_masks=tried))) == spared
    assert spares_hand_offs(SimpleNamespace(device=None))

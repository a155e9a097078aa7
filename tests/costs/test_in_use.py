"""Costs that a device cannot have are not counted on."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from spac.costs.cache import spares_hand_offs


@pytest.mark.parametrize(
    ("masks", "tried", "spared"),
    [("", True, True), ("", False, False), ("no-masks", True, False), ("masks", False, True)],
)
def test_where_the_device_reads_no_masks_no_hand_off_is_spared(monkeypatch, masks, tried, spared):
    """On such a device the CPU lists the resident experts, so every layer waits for the CPU."""
    monkeypatch.setenv("SPAC_FORM", masks)
    assert spares_hand_offs(SimpleNamespace(device=SimpleNamespace(reads_masks=tried))) == spared
    assert spares_hand_offs(SimpleNamespace(device=None))

"""Slots for a model's experts: as many as were asked for, or as fit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spac.config import Slots
from spac.errors import OutOfMemoryError

if TYPE_CHECKING:
    import spac._core as _core

STAND_IN_SHARE = 0.25  # of the experts, by default: on the stand-in, slots are there to show the split
MARGIN_SHARE = 0.05  # of the device's memory that auto leaves free
MARGIN_LEAST = 256 << 20  # on a real device, whose libraries allocate when they are first used


def attach_slots(experts: _core.Experts, device: _core.DeviceInfo, slots: Slots) -> list[str]:
    """Attach slots to experts without any; notes for the user. Raises OutOfMemoryError, one line."""
    n_experts = sum(layer.n_expert for layer in experts.layers)
    if slots.is_auto:
        return _what_fits(experts, device, n_experts)
    _exactly(experts, device, slots.of(n_experts))
    return []


def _exactly(experts: _core.Experts, device: _core.DeviceInfo, n_slots: int) -> None:
    try:
        if n_slots:
            experts.attach_slots(n_slots)
    except OutOfMemoryError:
        fit = experts.slots_that_fit(0)
        raise OutOfMemoryError(
            f"{n_slots} slots do not fit into the memory of {device.name}: {fit} would; "
            f"give --slots {fit} or --slots auto"
        ) from None


def _what_fits(experts: _core.Experts, device: _core.DeviceInfo, n_experts: int) -> list[str]:
    margin, wanted = int(device.memory_total * MARGIN_SHARE), n_experts
    if device.is_stand_in:
        wanted = max(1, round(wanted * STAND_IN_SHARE))
    else:
        margin = max(margin, MARGIN_LEAST)
    n_slots = min(wanted, experts.slots_that_fit(margin))
    while n_slots:
        try:
            experts.attach_slots(n_slots)
            break
        except OutOfMemoryError:
            n_slots = n_slots * 3 // 4  # memory may be too fragmented for what its sum promised
    if n_slots == wanted:
        return []
    return [f"slots: {n_slots} of {n_experts} experts fit into the memory of {device.name}"]

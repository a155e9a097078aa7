"""The devices that hold slots alone, and the numbers of layers whose experts they get."""

from __future__ import annotations

from typing import Any

from spac.config.fields import names_in
from spac.config.remote import MOST_DEVICES, layer_counts
from spac.errors import InputError


def slot_devices(value: Any) -> tuple[str, ...]:
    """Return the names of devices in a text or a sequence. Raises InputError."""
    found = tuple(str(each).strip() for each in names_in(value))
    for name in found:
        if name.lower() in ("", "auto", "cpu"):
            raise InputError(f"slot_devices: '{name}' is no device that can hold slots: name one (CUDA1)")
        if [each.lower() for each in found].count(name.lower()) > 1:
            raise InputError(f"slot_devices: {name} is named twice, name each device once")
    if len(found) >= MOST_DEVICES:
        raise InputError(f"slot_devices: {len(found)} devices are too many: {MOST_DEVICES - 1} work at most")
    return found


def slot_layers(value: Any) -> tuple[int, ...]:
    """Return the numbers of layers in a text, a number or a sequence. Raises InputError."""
    return layer_counts(value, "slot_layers")


def check(
    devices: tuple[str, ...] | None, layers: tuple[int, ...] | None, draft_types: tuple[str, ...]
) -> None:
    """Raise InputError if the numbers do not fit the devices, or if a way to draft needs one device."""
    if layers is not None and not devices:
        raise InputError("slot_layers needs devices for the slots: add --slot-devices NAME")
    if layers is not None and devices is not None and len(layers) != len(devices):
        raise InputError(
            f"slot_layers has {len(layers)} numbers for {len(devices)} devices: give one for each"
        )
    if devices and "self" in draft_types:
        raise InputError(
            "draft-type self needs all experts on the main device: choose another, or leave out "
            "--slot-devices"
        )

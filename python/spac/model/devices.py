"""The device that models run on, by its name."""

from __future__ import annotations

from spac import _core, env
from spac.errors import InputError

SIMULATED = "simulated"
"""The device whose settings are the environment's."""


def choose_device(name: str) -> _core.DeviceInfo | None:
    """Return the device of a name; None for the CPU alone.

    "auto" is the device that SPAC_DEVICE names, or else the first GPU, or else the CPU. Raises InputError for
    an unknown name.
    """
    known = _core.devices()
    name = (env.DEVICE.get() or name) if name.lower() == "auto" else name
    wanted = name.lower()
    for device in known:
        if wanted == device.name.lower() or (wanted == "auto" and not device.shares_host_cores):
            return device
    if wanted in ("auto", "cpu"):
        return None
    names = ", ".join(["auto", *(device.name for device in known), "cpu"])
    raise InputError(f"unknown device '{name}': choose one of {names} (see `spac doctor`)")


def memory_is_given(device: _core.DeviceInfo) -> bool:
    """Return True if a limit or the simulated device's settings say how much memory a device has."""
    return bool(device.memory.limit or (device.name == SIMULATED and _core.simulated_device()["memory_mb"]))

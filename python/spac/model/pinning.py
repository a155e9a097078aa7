"""Pinning of experts in host memory: the limit, its setting, and notes for users."""

from __future__ import annotations

from spac import _core, env
from spac.machine import host_memory, nvidia
from spac.machine.device_memory import size

SLICE = 1 << 30
"""Bytes of one registration with the driver.

Some drivers refuse 512 GiB in one call. A refusal leaves only one slice unpinned.
"""
_READ_ONLY = 113  # CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED


def set_pinning() -> None:
    """Set the environment's pinning for models that are loaded later. Raises InputError, with one line."""
    _core.set_pinning(on=env.FORM.get("pinned") is not False, limit=limit(), slice=SLICE)


def limit() -> int | None:
    """Return the bytes of experts that may be pinned; None without a limit. Raises InputError."""
    wanted = env.PIN_LIMIT.get()
    return _usual_limit() if wanted is None else wanted


def _usual_limit() -> int | None:
    """Return half of the memory in bytes on WSL2, which pins no more; None on other systems."""
    if not nvidia.on_wsl():
        return None
    try:
        return host_memory.sizes()[1] // 2
    except (OSError, KeyError):
        return None


def pinning_note(name: str, experts: _core.Experts, device: _core.DeviceInfo) -> str:
    """Return one line for users if experts that should be pinned are not; else ""."""
    found = experts.host_bytes
    if found.why not in ("limit", "refused"):
        return ""
    pinned, total = size(found.pinned), size(found.pinned + found.pageable)
    what = (
        f"only {pinned} of {total} of its experts are pinned"
        if found.pinned
        else f"none of its experts ({total}) are pinned"
    )
    others = "the others are" if found.pinned else "they are"
    reason = _reason(found.why, found.pinned > 0, device)
    return f"{name}: {what}, for {reason}; {others} copied through a staging buffer"


def _reason(why: str, some: bool, device: _core.DeviceInfo) -> str:
    if why == "limit":
        allowed = size(limit() or 0)
        return (
            f"{env.PIN_LIMIT.name} allows {allowed}"
            if env.PIN_LIMIT.get() is not None
            else f"WSL2 pins half of the memory at most, {allowed} ({env.PIN_LIMIT.name} sets another limit)"
        )
    if not some and not registers_read_only(device.name):
        return f"{device.name} cannot register memory that is read-only"
    more = "more" if some else "it"
    return f"the driver of {device.name} refused {more} (a container's or user's limit is `ulimit -l`)"


def registers_read_only(device: str) -> bool:
    """Return True if a CUDA device can register a file's mapping, or if that is unknown."""
    return nvidia.attribute(device, _READ_ONLY) != 0


def outlook(devices: list[_core.DeviceInfo]) -> tuple[str, str]:
    """Return what would be pinned, and the reason for less than all, before a model is loaded."""
    if env.FORM.get("pinned") is False:
        return "off", f"{env.FORM.name} switches it off: uploads are slower"
    if devices and not registers_read_only(devices[0].name):
        return "no mapping", f"{devices[0].name} cannot register memory that is read-only: uploads are slower"
    allowed = limit()
    return ("all" if allowed is None else f"up to {size(allowed)}"), ""

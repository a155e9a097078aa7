"""NVIDIA's driver and cards: whether a build's kernels can run on them, and what else depends on the driver.

The driver's library is asked directly. Where it does not answer, everything counts as usable.
"""

from __future__ import annotations

import ctypes
import functools
import platform
from pathlib import Path
from typing import Literal

_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, …_MINOR
_DEVICES = Path("/sys/bus/pci/devices")
_FIRST_DRIVERS = {12: 525, 13: 580}
"""The first driver that runs programs of a CUDA version, as NVIDIA's compatibility guide has it."""

Kernels = Literal["made", "compiled", "none"]
"""A build's kernels for a card: made for it, compiled by the driver at their first use, or none."""


def on_wsl() -> bool:
    """Return True under WSL2, where the driver belongs to Windows."""
    return "microsoft" in platform.release().lower()


@functools.cache
def shows_desktop(device: str, pci: str) -> bool:
    """Return True if a CUDA device at this address of the PCI bus shows a desktop, whose memory changes.

    The driver's management library is asked, and else the system's list of connectors. Under WSL2 Windows
    counts as a desktop.
    """
    if not device.startswith("CUDA"):
        return False
    if on_wsl():
        return True
    active = _display_active(pci)
    return _has_monitor(pci) if active is None else active


def _display_active(pci: str) -> bool | None:
    """Return what NVIDIA's management library says of a card's display; None if it does not answer."""
    handle, active = ctypes.c_void_p(), ctypes.c_int()
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
        failed = (
            library.nvmlInit_v2()
            or library.nvmlDeviceGetHandleByPciBusId_v2(pci.encode(), ctypes.byref(handle))
            or library.nvmlDeviceGetDisplayActive(handle, ctypes.byref(active))
        )
    except (OSError, AttributeError):
        return None
    return None if failed else bool(active.value)


def _has_monitor(pci: str) -> bool:
    """Return True if a monitor is connected to the card."""
    for status in (_DEVICES / pci.lower() / "drm").glob("card*/card*-*/status"):
        try:
            if status.read_text().strip() == "connected":
                return True
        except OSError:
            continue
    return False


def attribute(device: str, number: int) -> int | None:
    """Return an attribute of a CUDA device by the driver's number for it; None if it is unknown.

    device: ggml's name, such as "CUDA0".
    """
    index = device.removeprefix("CUDA")
    if index == device or not index.isdigit():
        return None
    try:
        driver = ctypes.CDLL("libcuda.so.1")
        handle, value = ctypes.c_int(), ctypes.c_int()
        failed = (
            driver.cuInit(0)
            or driver.cuDeviceGet(ctypes.byref(handle), int(index))
            or driver.cuDeviceGetAttribute(ctypes.byref(value), number, handle)
        )
    except (OSError, AttributeError):
        return None
    return None if failed else value.value


def capability(device: str) -> int | None:
    """Return ten times the compute capability of a CUDA device, such as 89 for 8.9; None if it is unknown."""
    major, minor = attribute(device, _MAJOR), attribute(device, _MINOR)
    return 10 * major + minor if major and minor is not None else None


def driver_cuda() -> tuple[int, int] | None:
    """Return the newest CUDA version that the driver supports, such as (12, 4); None without a driver."""
    version = ctypes.c_int()
    try:
        if ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version)) != 0:
            return None
    except (OSError, AttributeError):
        return None
    return version.value // 1000, version.value % 1000 // 10


def kernels_for(card: int | None, architectures: str) -> Kernels:
    """Return what a build has for a card of a compute capability (`capability`).

    architectures: those of the build, as CMake has them, with commas: "86-real,90-virtual". A binary (`real`)
    runs on cards of its major version from its minor one on, one with a letter on its own card or family
    alone. The driver compiles intermediate code (`virtual`) for every card from its capability on. A number
    alone stands for both. Unknown cards and names count as `made`.
    """
    found: Kernels = "none"
    for each in architectures.lower().split(","):
        name, _, kind = each.strip().partition("-")
        digits = name.rstrip("af")
        if card is None or not digits.isdigit():
            return "made"
        target, letter = int(digits), name[len(digits) :]
        alike = target // 10 == card // 10 and target <= card
        if kind != "virtual" and (target == card if letter == "a" else alike):
            return "made"
        if kind != "real" and not letter and target <= card:
            found = "compiled"
    return found


def too_old(build: str) -> str:
    """Return why the driver cannot run a build for a CUDA version ("13.0"), and what to do; else ""."""
    driver, needed = driver_cuda(), build.split(".")[0]
    if driver is None or not needed.isdigit() or driver[0] >= int(needed):
        return ""
    first = _FIRST_DRIVERS.get(int(needed))
    update = f"update it to {first} or newer" if first is not None else "update it"
    supports = f"the NVIDIA driver supports CUDA {driver[0]}.{driver[1]}"
    return f"{supports}, and this build needs CUDA {needed}: {update}"

"""Checks of GPUs, their drivers, and what fits into their memory."""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Iterator
from pathlib import Path

from spac.config import EngineConfig
from spac.config.values import VramLimit
from spac.doctor.trial import Finding
from spac.machine import nvidia
from spac.machine.device_memory import DESKTOP, size

NO_CUDA_BUILD = "built without CUDA: install the toolkit, and spac anew with -DSPAC_CUDA=on in CMAKE_ARGS"
NO_DRIVER = "install the driver of the NVIDIA GPU, if there is one: libcuda.so.1 cannot be loaded"
NO_VULKAN_DEVICE = (
    "no driver offers a Vulkan GPU; a software device counts only if GGML_VK_VISIBLE_DEVICES names it"
)
COMPACT_FORM = (
    "its kernels read no masks of ids, so it waits for the CPU's list of the experts in slots in each layer; "
    "nothing is launched ahead or handed over in place, and short prompts are not divided"
)


def with_vulkan() -> bool:
    """Return True if the library has llama.cpp's Vulkan backend: then it is linked with libvulkan."""
    from spac import _library

    return hasattr(ctypes.CDLL(str(_library.library_path())), "vkGetInstanceProcAddr")


def gpu() -> Iterator[Finding]:
    """Yield the builds, the driver, the GPUs, what they lack, and the pinning of memory."""
    from spac import _core, _library
    from spac.model import pinning
    from spac.model.devices import kernels_on, without_kernels

    built = hasattr(ctypes.CDLL(str(_library.library_path())), "ggml_backend_cuda_reg")
    why = "" if built else NO_CUDA_BUILD
    yield Finding("cuda-build", "ok" if built else "off", "yes" if built else "no", why)
    driver = _driver()
    why = "" if driver else NO_DRIVER
    yield Finding("driver", "ok" if driver else "off", driver or "none", why)
    devices = [device for device in _core.devices() if not device.shares_host_cores]
    if with_vulkan():
        why = "" if any(device.name.startswith("Vulkan") for device in devices) else NO_VULKAN_DEVICE
        yield Finding("vulkan-build", "off" if why else "ok", "yes", why)
    for line in without_kernels(devices):
        yield Finding("kernels", "fault", "none for this GPU", line)
    for name in [device.name for device in devices if kernels_on(device.name) == "compiled"]:
        why = "the driver compiles them at their first use: build with -DSPAC_CUDA_ARCHITECTURES=native"
        yield Finding("kernels", "off", f"{name}: none made for this GPU", why)
    for device in devices:
        free, total = size(device.memory_free), size(device.memory_total)
        yield Finding("gpu", "ok", f"{device.name}, {device.description}, {free} of {total} free")
        if nvidia.shows_desktop(device.name, device.pci):
            more = f"slots leave {size(DESKTOP)} more free, and shrink when windows take memory"
            yield Finding("desktop", "ok", f"{device.name} shows one: {more}")
        if not device.reads_masks:
            yield Finding("split", "off", f"{device.name}: the compact form", COMPACT_FORM)
    if not devices:
        yield Finding("gpu", "off", "none", _why_no_gpu(built, driver))
    else:
        found, why = pinning.outlook(devices)
        yield Finding("pinning", "off" if why else "ok", found, why)


def _why_no_gpu(built: bool, driver: str) -> str:
    from spac import _core

    if not built or not driver:
        what = "a CUDA build" if driver else "a driver" if built else "a CUDA build and a driver"
        return f"needs {what}: everything runs on the CPU; --device simulated shows the split"
    if why := nvidia.too_old(_core.cuda_version):
        return why
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return f"the driver offers no device{'' if visible is None else f': CUDA_VISIBLE_DEVICES is {visible!r}'}"


def _driver() -> str:
    """Return the NVIDIA driver's version and the CUDA version that it supports; "" without a driver."""
    if (supported := nvidia.driver_cuda()) is None:
        return ""
    cuda = f"CUDA {supported[0]}.{supported[1]}"
    try:
        text = Path("/proc/driver/nvidia/version").read_text()
    except OSError:  # WSL2 has no such file
        return cuda
    match = re.search(r"\b(\d+\.\d+(?:\.\d+)?)\b", text)
    return f"{match[1]}, {cuda}" if match else cuda


def images(target: Path | None, mmproj: Path | None) -> Iterator[Finding]:
    """Yield whether the model sees images."""
    from spac.model.gguf.check import check_projector

    if mmproj is not None:
        kind, n_bytes = check_projector(mmproj), mmproj.stat().st_size
        yield Finding("images", "ok", f"{mmproj.name}: {size(n_bytes)}, a projector {kind}")
    elif target is not None:
        yield Finding("images", "off", "text alone is read", "--mmproj FILE names a model's projector")


def vram(target: Path | None, limit: VramLimit | None, mmproj: Path | None = None) -> Iterator[Finding]:
    """Yield the memory free for models on the default devices, and the part of a model that fits."""
    from spac.model.devices import device_room, fit
    from spac.model.gguf.check import check_model
    from spac.model.whole import all_fit

    room = device_room(limit)
    if room is None:
        if limit is not None:
            why = f"{limit.share or 0:.0%} of no GPU: give the size of one, such as --vram-limit 8G"
            yield Finding("vram", "off", "none", why)
        return
    simulated = room.device is not None and room.device.shares_host_memory
    if simulated and target is None and limit is None:
        return
    of = f" of the {size(room.allowed)} that --vram-limit allows" if limit and room.devices else ""
    yield Finding("vram", "ok", f"{room.names}: room for {size(room.free)}{of}, a margin left free")
    if target is None:
        return
    info = check_model(target)
    fitting = fit(info, room, 0 if mmproj is None else mmproj.stat().st_size)
    dense = size(fitting.dense_bytes)
    experts = f"{dense} beside the experts, {size(info.expert_bytes)} of experts"
    found = f"{target.name}: {experts if info.is_moe else dense}"
    if room.free < fitting.dense_bytes:
        why = f"{dense} must be on {room.names}, and there is room for {size(room.free)}"
        yield Finding("fit", "off", found, why)
    else:
        of_them = f", {fitting.share:.0%} fit on {room.names}, contexts not counted" if info.is_moe else ""
        if all_fit(EngineConfig(target, vram_limit=limit, mmproj=mmproj), info, None, room.devices):
            of_them = ", all of them fit: llama.cpp computes the model there, without the split"
        yield Finding("fit", "ok", found + of_them)

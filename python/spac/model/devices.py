"""The devices that models run on, by their names, and the part of a model that they hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spac import _core, env
from spac.config import EngineConfig
from spac.config.values import VramLimit
from spac.errors import InputError
from spac.machine import nvidia
from spac.machine.cpu import default_threads, physical_cores
from spac.machine.device_memory import margin, simulated_index, size, spare
from spac.model.gguf.info import ModelInfo
from spac.model.known import KnownModel

COMPILING_S = 1200.0
"""The seconds that a thread waits at a gate where the driver compiles kernels at their first use."""


def set_switches(devices: Sequence[_core.DeviceInfo] = ()) -> list[str]:
    """Set what the environment says about the mechanism, for contexts that are made later on these devices.

    Return notes about what differs from the usual.
    """
    ahead, timeout, notes = env.FORM.get("ahead"), env.GATE_TIMEOUT.get(), list[str]()
    cuda = [device.name for device in devices if device.name.startswith("CUDA")]
    if cuda and ahead is None and nvidia.on_wsl():
        # Windows may keep work back that was queued, while the CPU waits for it.
        ahead = False
        notes.append(f"WSL2: work is not queued ahead of the CPU; {env.FORM.name}=ahead tries it")
    if late := [name for name in cuda if kernels_on(name) == "compiled"]:
        timeout = COMPILING_S if timeout is None else timeout
        notes.append(
            f"{', '.join(late)}: the driver compiles this build's kernels at their first use, which may take "
            "minutes once; -DSPAC_CUDA_ARCHITECTURES=native avoids it"
        )
    _core.set_launch_ahead(ahead)
    _core.set_hand_over_in_place(env.FORM.get("in-place"))
    _core.set_gate_timeout(timeout)
    _core.set_trust_device_masks(env.FORM.get("masks"))
    _core.set_upload_threads(-1 if env.FORM.get("upload-threads") else 0)
    return notes


def kernels_on(name: str) -> nvidia.Kernels:
    """Return what this build has for a device."""
    return nvidia.kernels_for(nvidia.capability(name), _core.cuda_architectures)


def without_kernels(devices: Sequence[_core.DeviceInfo]) -> list[str]:
    """Return one line for each device on which the process would end at the first kernel."""
    return [_no_kernels(device.name) for device in devices if kernels_on(device.name) == "none"]


def _no_kernels(name: str) -> str:
    card = nvidia.capability(name) or 0
    return (
        f"{name} has compute capability {card // 10}.{card % 10}, and this build has kernels for "
        f"{_core.cuda_architectures} alone: build with -DSPAC_CUDA_ARCHITECTURES={card}"
    )


def choose_device(name: str) -> _core.DeviceInfo | None:
    """Return the first device of a name or of a list of names; None for the CPU alone.

    Raises InputError for an unknown name.
    """
    return next(iter(choose_devices(name)), None)


def choose_devices(names: str) -> tuple[_core.DeviceInfo, ...]:
    """Return the devices of a list of names with commas; none for the CPU alone.

    "auto" stands for what SPAC_DEVICE names, or else for all GPUs, or else for the CPU. GPUs of other drivers
    than the first one's are left out, because they may be the same cards, and GPUs for which this build has
    no kernels. Raises InputError for an unknown name, and for such a GPU.
    """
    names = (env.DEVICE.get() or names) if names.strip().lower() == "auto" else names
    given = [name.strip() for name in names.split(",")]
    wanted = [name.lower() for name in given]
    if any(simulated_index(name) is not None for name in wanted):
        set_up_simulated()
    known = _core.devices()
    if wanted == ["auto"]:
        return _all_gpus(known)
    if wanted == ["cpu"]:
        return ()
    by_name = {device.name.lower(): device for device in known}
    if without := without_kernels([by_name[name] for name in wanted if name in by_name]):
        raise InputError(without[0])
    for text, name in zip(given, wanted, strict=True):
        if name in ("auto", "cpu"):
            raise InputError(f"device '{names}': {text} cannot be one of several, leave it out")
        if name not in by_name:
            listed = ", ".join(["auto", *(device.name for device in known), "cpu"])
            raise InputError(f"unknown device '{text}': choose one of {listed} (see `spac doctor`)")
        if wanted.count(name) > 1:
            raise InputError(f"device '{names}': {text} is named twice, name each device once")
    return tuple(by_name[name] for name in wanted)


def _all_gpus(known: list[_core.DeviceInfo]) -> tuple[_core.DeviceInfo, ...]:
    gpus = [device for device in known if not device.shares_host_cores and kernels_on(device.name) != "none"]
    if not gpus:
        return ()
    driver = _driver(gpus[0].name)
    alike = [each for each in gpus if _driver(each.name) == driver and not each.is_integrated]
    return tuple(alike) or (gpus[0],)


def _driver(name: str) -> str:
    """Return a device's name without its number."""
    return name.rstrip("0123456789")


def devices_of(config: EngineConfig) -> tuple[tuple[_core.DeviceInfo, ...], _core.DeviceInfo | None]:
    """Return the devices in use, and the main one; none and None for the CPU alone.

    Devices that share the layers come first, then those with slots alone. Raises InputError if the main GPU
    or a part of the layers is given for a device that does not exist, and for devices that do not go
    together.
    """
    slots = _slot_devices(config)
    devices = _layer_devices(config, slots)
    if not devices:
        return (), None
    names = ", ".join(device.name for device in devices)
    there = f"there is one device ({names})" if len(devices) == 1 else f"there are {len(devices)} ({names})"
    if config.main_gpu >= len(devices):
        give = "0" if len(devices) == 1 else f"0 to {len(devices) - 1}"
        raise InputError(f"main_gpu {config.main_gpu}: {there}: give {give}, or name more with --device")
    main = devices[config.main_gpu]
    if config.rpc and len(devices) > 1 and config.split_mode != "none" and config.device.lower() != "auto":
        raise InputError(f"rpc goes with one device here, and {there}: name one, or give --split-mode none")
    if slots:
        if len(devices) > 1 and config.split_mode != "none" and config.device.lower() != "auto":
            raise InputError(
                f"slot_devices goes with one device for the layers, and {there}: name one with --device, or "
                "give --split-mode none"
            )
        devices = (main,)
    if config.split_mode == "none" or config.rpc:
        return (main, *slots), main
    if (parts := config.tensor_split) is not None:
        if len(parts) > len(devices):
            text = ",".join(f"{part:g}" for part in parts)
            raise InputError(
                f"tensor_split {text} has {len(parts)} parts, and {there}: give {len(devices)} at most, or "
                "name more with --device"
            )
        if not any(parts[: len(devices)]):
            raise InputError("tensor_split gives no device a part of the layers: give one a number above 0")
    return (*devices, *slots), main


def _slot_devices(config: EngineConfig) -> tuple[_core.DeviceInfo, ...]:
    """Return the devices with slots alone. Raises InputError for an unknown one, and together with RPC."""
    if not config.slot_devices:
        return ()
    if config.rpc:
        raise InputError("slot_devices does not go with rpc: leave one of them out")
    if any(simulated_index(name) is not None for name in config.slot_devices):
        set_up_simulated()
    known = {device.name.lower(): device for device in _core.devices()}
    for name in config.slot_devices:
        if name.lower() not in known:
            listed = ", ".join(device.name for device in known.values())
            raise InputError(
                f"slot_devices: unknown device '{name}': choose one of {listed} (see `spac doctor`)"
            )
    return tuple(known[name.lower()] for name in config.slot_devices)


def _layer_devices(config: EngineConfig, slots: tuple[_core.DeviceInfo, ...]) -> tuple[_core.DeviceInfo, ...]:
    """Return the devices that can have layers. Raises InputError if one has slots alone, or if none is left.

    A choice of "auto" leaves devices with slots alone out.
    """
    devices, names = choose_devices(config.device), {device.name for device in slots}
    if not slots:
        return devices
    left = tuple(device for device in devices if device.name not in names)
    if not devices:
        raise InputError(
            "slot_devices: the layers would be on the CPU: name a device for them with --device, or leave "
            "it out"
        )
    if not left:
        raise InputError(
            f"slot_devices: {', '.join(sorted(names))} would hold the layers too: name another device with "
            "--device, or leave it out"
        )
    if len(left) < len(devices) and config.device.lower() != "auto":
        both = next(device.name for device in devices if device.name in names)
        raise InputError(f"slot_devices: {both} is a device of the layers (--device) too: name it once")
    return left


def usual_threads(devices: Sequence[_core.DeviceInfo]) -> int:
    """Return the number of CPU threads beside these devices, if no option gives one."""
    shares = any(device.shares_host_cores for device in devices)
    return default_threads(physical_cores(), gpu=bool(devices) and not shares, shares_cores=shares)


def schedules_beside(devices: Sequence[_core.DeviceInfo], threads: int) -> bool:
    """Return True if the scheduler works on a thread of its own while the next step computes.

    It needs a core beside those of the threads that compute, and of the one that launches a GPU's work.
    """
    wanted = env.FORM.get("schedule-beside")
    if wanted is not None:
        return wanted
    gpu = bool(devices) and not any(device.shares_host_cores for device in devices)
    return gpu and physical_cores() >= threads + 2


def current(device: _core.DeviceInfo) -> _core.DeviceInfo:
    """Return a device with its memory as it is now."""
    return next(each for each in _core.devices() if each.name == device.name)


def set_up_simulated() -> None:
    """Give the simulated devices the environment's settings, which may make further ones.

    Raises InputError for settings that they do not have.
    """
    for index, settings in enumerate(env.SIMULATED_DEVICE.get() or []):
        if settings or index:
            try:
                _core.set_simulated_device(**settings, index=index)
            except InputError as error:
                raise InputError(f"{env.SIMULATED_DEVICE.name}: {error}") from None


def memory_is_given(device: _core.DeviceInfo) -> bool:
    """Return True if a limit or the simulated device's settings say how much memory a device has."""
    index = simulated_index(device.name)
    return bool(device.memory.limit or (index is not None and _core.simulated_device(index)["memory_mb"]))


@dataclass(frozen=True)
class DeviceRoom:
    """The default devices' memory for models, in bytes."""

    devices: tuple[_core.DeviceInfo, ...]
    """The devices, which share a model's layers; none for a card that a limit alone describes."""
    allowed: int
    """Each device's memory, or the limit if that is less, added up."""
    free: int
    """The part of it that models can take. A margin of each device is left out."""

    @property
    def device(self) -> _core.DeviceInfo | None:
        """The first device; None for a card that a limit alone describes."""
        return next(iter(self.devices), None)

    @property
    def names(self) -> str:
        """The devices' names; "a GPU of 8.0 GiB" for one that a limit alone describes."""
        return " and ".join(device.name for device in self.devices) or f"a GPU of {size(self.allowed)}"


@dataclass(frozen=True)
class Fit:
    """The part of a model that fits into the devices' memory, as far as contexts leave room."""

    dense_bytes: int
    """The bytes beside the experts, which must be on the device."""
    n_experts: int
    """The number of experts of all layers."""
    share: float
    """The share of the experts that fit, 0 to 1; negative if `dense_bytes` does not fit."""

    @property
    def n_slots(self) -> int:
        """The number of experts that fit."""
        return max(0, int(self.share * self.n_experts))


def device_room(limit: VramLimit | None) -> DeviceRoom | None:
    """Return the memory for models on the default devices, within a limit of each.

    Without a device, a limit in bytes stands for a card of that size. Otherwise return None.
    """
    devices = choose_devices("auto")
    if not devices:
        if limit is None or limit.n_bytes is None:
            return None
        free = limit.n_bytes - margin(limit.n_bytes, shares_host_memory=False)
        return DeviceRoom((), limit.n_bytes, max(0, free))
    rooms = [room_on(device, limit) for device in devices]
    return DeviceRoom(devices, sum(allowed for allowed, _ in rooms), sum(free for _, free in rooms))


def room_on(device: _core.DeviceInfo, limit: VramLimit | None = None) -> tuple[int, int]:
    """Return the bytes of a device that spac may take, and those that are free, less the margin.

    A limit that the device has already holds too.
    """
    memory = device.memory
    allowed = memory.size if limit is None else min(memory.size, limit.of(memory.total))
    return allowed, max(0, min(memory.free, allowed) - spare(device, allowed))


def fit(info: ModelInfo | KnownModel, room: DeviceRoom, more_bytes: int = 0) -> Fit:
    """Return the part of a model that fits beside `more_bytes`, such as a projector's."""
    dense = info.device_bytes - info.expert_bytes + more_bytes
    share = min(1.0, (room.free - dense) / info.expert_bytes) if info.is_moe else 0.0
    return Fit(dense, info.n_experts, share)

"""The part of a model that devices hold, computed from the file's header before anything is loaded."""

from __future__ import annotations

from dataclasses import dataclass

from spac import _core
from spac.config.values import VramLimit
from spac.machine.device_memory import margin
from spac.model.devices import choose_devices
from spac.model.gguf.info import ModelInfo


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
        """The devices' names; "a card" for one that a limit alone describes."""
        return " and ".join(device.name for device in self.devices) or "a card"


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
        spare = margin(limit.n_bytes, shares_host_memory=False)
        return DeviceRoom((), limit.n_bytes, max(0, limit.n_bytes - spare))
    all_allowed = all_free = 0
    for device in devices:
        total = device.memory.total
        allowed = min(total, limit.of(total)) if limit is not None else total
        spare = margin(allowed, shares_host_memory=device.shares_host_memory)
        all_allowed += allowed
        all_free += max(0, min(device.memory.free, allowed) - spare)
    return DeviceRoom(devices, all_allowed, all_free)


def fit(info: ModelInfo, room: DeviceRoom, more_bytes: int = 0) -> Fit:
    """Return the part of a model that fits beside `more_bytes`, such as a projector's."""
    dense = info.file_size - info.expert_bytes + more_bytes
    share = min(1.0, (room.free - dense) / info.expert_bytes) if info.is_moe else 0.0
    return Fit(dense, info.n_experts, share)

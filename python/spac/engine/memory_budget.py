"""The device memory of an engine while it runs: its limit, its slots, and what other programs take."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import monotonic

from spac import _core
from spac.config import EngineConfig, Slots, VramLimit
from spac.engine.expert_cache import ExpertCache
from spac.engine.slots import beside_graphs, holders, spares, wanted_slots
from spac.errors import InputError
from spac.machine.device_memory import size, spare
from spac.model.devices import current, memory_is_given
from spac.model.pair import ModelPair

LOOK_S = 1.0
"""Seconds between two looks at the device's free memory."""
GROW_S = 10.0
"""Seconds for which memory has to be free before slots grow into it."""
LEAST_GROWTH = 0.05
"""The least growth, as a share of the slots that are wanted. Each growth copies all experts anew."""


class Pressure:
    """Decides from the device's free memory when slots shrink and when they grow again."""

    def __init__(self, spare: int, free: int, kernels: int = 0) -> None:
        """Begin with `free` bytes on the device, of which slots leave `spare` to the driver's libraries.

        Pools of kernels have `kernels` bytes already.
        """
        self._least = min(spare, free) // 4  # The libraries take some of it after the slots are attached.
        self._kernels = kernels
        self._room_since: float | None = None

    def shrinks(self, free: int) -> bool:
        """Return True if another program took memory that the driver's libraries may need."""
        return free < self._least

    def comes_from_others(self, free: int, kernels: int) -> bool:
        """Return True if memory is short without what pools of kernels have taken meanwhile, too."""
        return self.shrinks(free + kernels - self._kernels)

    def grows(self, now: float, has_room: bool) -> bool:
        """Return True if there has been room for `GROW_S` seconds, at every look."""
        if not has_room:
            self._room_since = None
        elif self._room_since is None:
            self._room_since = now
        return self._room_since is not None and now - self._room_since >= GROW_S


class MemoryBudget:
    """Changes the limit and the slots of an engine that has loaded its models.

    All methods run while the loop does not compute (`LoopWork`).
    """

    def __init__(
        self, config: EngineConfig, pair: ModelPair, cache: ExpertCache, say: Callable[[str], None]
    ) -> None:
        """Begin with the slots that `cache` has attached. `say` receives a note for the user."""
        self._config, self._pair, self._cache, self._say = config, pair, cache, say
        self._slots = config.slots
        self._looked = monotonic()
        self._pressure = self._new_pressure()

    def set_vram_limit(self, limit: VramLimit | str | int | float | None) -> None:
        """Set the limit of each device's memory, or None for none, and attach as many slots as it allows.

        Raise InputError if the limit is less than the memory of a device's weights and contexts.
        """
        experts = self._experts("vram_limit")
        slots = {each.name: each.slots.bytes for each in experts.devices}
        parsed = VramLimit.parse(limit) if limit is not None else None
        limits = {}
        for device in self._devices:
            n_bytes = parsed.of(device.memory.total) if parsed is not None else 0
            fixed = device.memory.used - slots.get(device.name, 0)
            if n_bytes and n_bytes < fixed:
                raise InputError(
                    f"vram_limit: {size(n_bytes)} of {device.name} is less than the {size(fixed)} that "
                    "weights, contexts and the rest beside the slots take: give more"
                )
            limits[device.name] = n_bytes
        for name, n_bytes in limits.items():
            _core.set_memory_limit(name, n_bytes)
        self._pair.placement.refresh_devices()
        self._refit()

    def set_slots(self, slots: Slots | str | int | float) -> None:
        """Change the number of slots: a count, a share, or "auto" for what fits.

        Raise InputError if they do not fit. The slots are then as they were.
        """
        self._experts("slots")
        wanted = Slots.parse(slots)
        if not wanted.is_auto and (fit := self._fit([0])) < (n := wanted.of(self._n_experts)):
            raise InputError(f"slots: {n} do not fit into {self._pair.placement.device_names}: {fit} would")
        self._slots = wanted
        self._refit()

    def make_room(self) -> bool:
        """Shrink the slots by what kernels of a device have asked for in vain.

        Return True if the slots shrank. The loop calls this when a decode has failed for lack of memory.
        """
        experts = self._pair.experts
        if experts is None:
            return False
        lacked = {each.name: _core.take_kernel_refusal(each.name) for each in self._holders}
        before = experts.slots.n_slots
        if not before or not any(lacked.values()):
            return False
        wanted = [spare + lacked[each.name] for spare, each in zip(self._spares, self._holders, strict=True)]
        self._attach(min(before - 1, self._fit(wanted)))
        after = experts.slots.n_slots
        needs = " and ".join(f"{size(n)} more of {name}" for name, n in lacked.items() if n)
        self._say(f"slots: {after} instead of {before}, because the device's kernels need {needs}")
        return True

    def look(self, now: float | None = None) -> None:
        """Shrink the slots if another program took the device's memory, and grow them when it is free again.

        `now` is the time in seconds. The device is asked once a second at most.
        """
        now = monotonic() if now is None else now
        experts = self._pair.experts
        if experts is None or now - self._looked < LOOK_S:
            return
        self._looked = now
        if not self._has_own_memory:
            return
        devices, before = self._holders, experts.slots.n_slots
        pressed = [
            device for device in devices
            if self._pressure[device.name].shrinks(device.memory.device_free)
        ]  # fmt: skip
        free = ", ".join(f"{size(each.memory.device_free)} of {each.name}" for each in pressed or devices)
        if before and pressed:
            self._attach(min(before, self._fit(self._spares)))
            why = f"another program left {free}" if self._by_others(pressed) else f"kernels left {free}"
        else:
            wanted = self._wanted
            room = min(wanted, self._fit([2 * each for each in self._spares])) if before < wanted else 0
            has_room = room - before >= max(1, round(LEAST_GROWTH * wanted))
            grown = [each.grows(now, has_room) for each in self._pressure.values()]  # each has to know
            if not all(grown):
                return
            self._attach(min(wanted, self._fit(self._spares)))
            why = f"{free} are free"
        if (after := experts.slots.n_slots) != before:
            self._say(f"slots: {after} instead of {before}, for {why}")

    # Inside

    def _by_others(self, pressed: Sequence[_core.DeviceInfo]) -> bool:
        return any(
            self._pressure[each.name].comes_from_others(each.memory.device_free, each.memory.kernels)
            for each in pressed
        )

    @property
    def _devices(self) -> list[_core.DeviceInfo]:
        """The devices, with their memory as it is now."""
        return [current(device) for device in self._pair.placement.devices]

    @property
    def _holders(self) -> list[_core.DeviceInfo]:
        """The devices that hold layers with experts, with their memory as it is now."""
        return holders(self._experts("slots"))

    @property
    def _has_own_memory(self) -> bool:
        devices = self._pair.placement.devices
        return bool(devices) and all(not each.shares_host_memory or memory_is_given(each) for each in devices)

    def _experts(self, what: str) -> _core.Experts:
        if self._pair.experts is None:
            raise InputError(f"{what}: {self._pair.placement.unsplit}")
        return self._pair.experts

    @property
    def _n_experts(self) -> int:
        return sum(layer.n_expert for layer in self._experts("slots").layers)

    @property
    def _spares(self) -> list[int]:
        """The bytes that slots leave free on each device."""
        return spares(self._experts("slots"))

    @property
    def _wanted(self) -> int:
        """The number of slots that the user wants, which may be more than fit."""
        if self._cache.scheduler_name == "none":  # Nothing would fill slots again.
            return self._experts("slots").slots.n_slots
        return wanted_slots(self._holders, self._slots, self._n_experts)

    def _fit(self, free: Sequence[int]) -> int:
        """Return the number of slots that leave `free` bytes of each device.

        With `auto`, they also leave memory to the graphs of prompts.
        """
        graphs = self._cache.graphs if any(free) and self._slots.is_auto else None
        experts = self._experts("slots")
        return experts.slots_that_fit(beside_graphs(experts, graphs, free))

    def _refit(self) -> None:
        """Attach the slots that the user wants, or as many as fit."""
        devices = self._devices
        within = all(each.memory.used <= (each.memory.limit or each.memory.used) for each in devices)
        if within and self._experts("slots").slots.n_slots == self._wanted:
            return
        free = self._spares if self._slots.is_auto else [0]
        self._attach(min(self._wanted, self._fit(free)))

    def _attach(self, n_slots: int) -> None:
        if n_slots != self._experts("slots").slots.n_slots:
            self._cache.resize(n_slots)
        self._pressure = self._new_pressure()

    def _new_pressure(self) -> dict[str, Pressure]:
        """Return the pressure on each device's memory, by the device's name."""
        if self._pair.experts is None:
            return {}
        return {
            each.name: Pressure(spare(each), each.memory.device_free, each.memory.kernels)
            for each in self._holders
        }

"""The device memory of an engine while it runs: its limit, its slots, and what other programs take."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from time import monotonic

from spac import _core
from spac.config import EngineConfig, Slots, VramLimit
from spac.engine.expert_cache import ExpertCache
from spac.engine.slots import slots_that_fit, wanted_slots
from spac.errors import InputError
from spac.machine.device_memory import margin, size
from spac.model.devices import memory_is_given
from spac.model.pair import ModelPair

LOOK_S = 1.0
"""Seconds between two looks at the device's free memory."""
GROW_S = 10.0
"""Seconds for which memory has to be free before slots grow into it."""
LEAST_GROWTH = 0.05
"""The least growth, as a share of the slots that are wanted. Each growth copies all experts anew."""


class Pressure:
    """Decides from the device's free memory when slots shrink and when they grow again."""

    def __init__(self, spare: int, free: int) -> None:
        """Begin with `free` bytes on the device, of which slots leave `spare` to the driver's libraries."""
        self._least = min(spare, free) // 4  # The libraries take some of it after the slots are attached.
        self._room_since: float | None = None

    def shrinks(self, free: int) -> bool:
        """Return True if another program took memory that the driver's libraries may need."""
        return free < self._least

    def grows(self, now: float, has_room: bool) -> bool:
        """Return True if there has been room for `GROW_S` seconds, at every look."""
        if not has_room:
            self._room_since = None
        elif self._room_since is None:
            self._room_since = now
        return self._room_since is not None and now - self._room_since >= GROW_S


class MemoryBudget:
    """Changes the limit and the slots of an engine that has loaded its models.

    All methods run between the calls of a session (`BetweenSteps`).
    """

    def __init__(
        self, config: EngineConfig, pair: ModelPair, cache: ExpertCache, say: Callable[[str], None]
    ) -> None:
        """Begin with the slots that `cache` has attached. `say` receives a note for the user."""
        self._config, self._pair, self._cache, self._say = config, pair, cache, say
        self._slots = config.slots
        self._looked = monotonic()
        self._pressure = self._new_pressure()

    @property
    def used(self) -> int:
        """The bytes of the device that spac uses."""
        return self._device.memory.used

    @property
    def limit(self) -> int:
        """The limit in bytes; 0 for none."""
        return self._device.memory.limit

    def set_vram_limit(self, limit: VramLimit | str | int | float | None) -> None:
        """Set the limit of the device's memory, or None for none, and attach as many slots as it allows.

        Raise InputError if the limit is less than the memory of weights and contexts.
        """
        experts, device = self._experts("vram_limit"), self._device
        total = device.memory.total
        n_bytes = VramLimit.parse(limit).of(total) if limit is not None else 0
        fixed = device.memory.used - experts.slots.bytes
        if n_bytes and n_bytes < fixed:
            raise InputError(
                f"vram_limit: {size(n_bytes)} of {device.name} is less than the {size(fixed)} that weights, "
                "contexts and the rest beside the slots take: give more"
            )
        _core.set_memory_limit(device.name, n_bytes)
        self._refresh_device()
        self._refit()

    def set_slots(self, slots: Slots | str | int | float) -> None:
        """Change the number of slots: a count, a share, or "auto" for what fits.

        Raise InputError if they do not fit. The slots are then as they were.
        """
        self._experts("slots")
        wanted = Slots.parse(slots)
        if not wanted.is_auto and (fit := self._fit(0)) < (n := wanted.of(self._n_experts)):
            raise InputError(f"slots: {n} do not fit into {self._device.name}: {fit} would")
        self._slots = wanted
        self._refit()

    def refit(self) -> None:
        """Attach the slots that the user wants, or as many as fit, after other memory was freed."""
        self._refit()

    def make_room(self, n_bytes: int) -> None:
        """Free `n_bytes` of the device's memory, as far as slots take it, for what is loaded next."""
        self._attach(min(self._wanted, self._fit(self._spare + n_bytes)))

    def look(self, now: float | None = None) -> None:
        """Shrink the slots if another program took the device's memory, and grow them when it is free again.

        `now` is the time in seconds. The device is asked once a second at most.
        """
        now = monotonic() if now is None else now
        experts = self._pair.experts
        if experts is None or now - self._looked < LOOK_S or not self._has_own_memory:
            return
        self._looked = now
        before, free = experts.slots.n_slots, self._device.memory.device_free
        if before and self._pressure.shrinks(free):
            self._attach(min(before, self._fit(self._spare)))
            why = f"another program left {size(free)} of {self._device.name}"
        else:
            wanted = self._wanted
            room = min(wanted, self._fit(2 * self._spare)) if before < wanted else 0
            if not self._pressure.grows(now, room - before >= max(1, round(LEAST_GROWTH * wanted))):
                return
            self._attach(min(wanted, self._fit(self._spare)))
            why = f"{size(free)} of {self._device.name} are free"
        if (after := experts.slots.n_slots) != before:
            self._say(f"slots: {after} instead of {before}, for {why}")

    # Inside

    @property
    def _device(self) -> _core.DeviceInfo:
        """The device with its memory as it is now."""
        assert self._pair.device is not None  # Slots need a device.
        name = self._pair.device.name
        return next(each for each in _core.devices() if each.name == name)

    def _refresh_device(self) -> None:
        self._pair.device = self._device

    @property
    def _has_own_memory(self) -> bool:
        device = self._pair.device
        return device is not None and (not device.shares_host_memory or memory_is_given(device))

    def _experts(self, what: str) -> _core.Experts:
        if self._pair.experts is None:
            raise InputError(f"{what}: {Path(self._config.target).name} runs without the split")
        return self._pair.experts

    @property
    def _n_experts(self) -> int:
        return sum(layer.n_expert for layer in self._experts("slots").layers)

    @property
    def _spare(self) -> int:
        """The bytes that slots leave free."""
        device = self._device
        return margin(device.memory.size, shares_host_memory=device.shares_host_memory)

    @property
    def _wanted(self) -> int:
        """The number of slots that the user wants, which may be more than fit."""
        if self._cache.scheduler_name == "none":  # Nothing would fill slots again.
            return self._experts("slots").slots.n_slots
        return wanted_slots(self._device, self._slots, self._n_experts)

    def _fit(self, spare: int) -> int:
        """Return the number of slots that leave `spare` bytes, and memory to large graphs with `auto`."""
        graphs = self._cache.graphs if spare and self._slots.is_auto else None
        return slots_that_fit(self._experts("slots"), self._device, graphs, spare)

    def _refit(self) -> None:
        """Attach the slots that the user wants, or as many as fit."""
        memory = self._device.memory
        if self._experts("slots").slots.n_slots == self._wanted and memory.used <= (
            memory.limit or memory.used
        ):
            return
        self._attach(min(self._wanted, self._fit(self._spare if self._slots.is_auto else 0)))

    def _attach(self, n_slots: int) -> None:
        if n_slots != self._experts("slots").slots.n_slots:
            self._cache.resize(n_slots)
        self._pressure = self._new_pressure()

    def _new_pressure(self) -> Pressure:
        if self._pair.experts is None:
            return Pressure(0, 0)
        return Pressure(self._spare, self._device.memory.device_free)

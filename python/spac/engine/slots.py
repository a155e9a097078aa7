"""Attaching slots to a model's experts: a given number, or the number that fits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spac import _core
from spac.config import Slots
from spac.engine.draft_experts import detach_draft
from spac.errors import OutOfMemoryError
from spac.machine.device_memory import margin, room_of, size
from spac.model.devices import memory_is_given
from spac.model.paging import AUTO_SHARE

if TYPE_CHECKING:
    from spac.engine.prompt_graphs import PromptGraphs


def attach_slots(
    experts: _core.Experts,
    device: _core.DeviceInfo,
    slots: Slots,
    draft: _core.Experts | None = None,
    graphs: PromptGraphs | None = None,
) -> list[str]:
    """Attach slots to experts that have none, and return notes for the user.

    `draft` has the draft's experts, if there are any. They give up their slots if the number of slots that
    the user asks for does not fit otherwise. Slots of `auto` leave memory to the `graphs` of prompts. Raise
    OutOfMemoryError if the slots do not fit.
    """
    n_experts = sum(layer.n_expert for layer in experts.layers)
    if slots.is_auto:
        return _what_fits(experts, device, n_experts, graphs)
    n_slots = slots.of(n_experts)
    if draft is not None and draft.slots.n_slots:
        try:
            experts.attach_slots(n_slots)
            return _little_left(device)
        except OutOfMemoryError:
            detach_draft(draft)
        _exactly(experts, device, n_slots)
        return [f"draft: its experts run on the CPU, to leave room for {n_slots} slots"]
    _exactly(experts, device, n_slots)
    return _little_left(device)


def _little_left(device: _core.DeviceInfo) -> list[str]:
    """Return a note if the memory left on the device may be too small for llama.cpp's kernels.

    The kernels allocate memory while they run, and end the process if they get none. The user's limit does
    not cover their memory, so there is no note if a limit is set.
    """
    memory = next((each.memory for each in _core.devices() if each.name == device.name), device.memory)
    wanted = margin(memory.size, shares_host_memory=device.shares_host_memory)
    if device.shares_host_memory or memory.limit or memory.free >= wanted:
        return []
    left = f"slots: they leave {size(memory.free)} of {device.name} to llama.cpp's kernels"
    return [f"{left}, which end the process where they need more; --slots auto leaves {size(wanted)}"]


def _exactly(experts: _core.Experts, device: _core.DeviceInfo, n_slots: int) -> None:
    """Attach `n_slots` slots, or raise OutOfMemoryError with the number that fits."""
    try:
        if n_slots:
            experts.attach_slots(n_slots)
    except OutOfMemoryError:
        fit = experts.slots_that_fit(0)
        raise OutOfMemoryError(
            f"{n_slots} slots do not fit into what is left of {room_of(device.name, device.memory)}: "
            f"{fit} would; give --slots {fit} or --slots auto"
        ) from None


def wanted_slots(device: _core.DeviceInfo, slots: Slots, n_experts: int) -> int:
    """Return the number of slots that the user wants, which may be more than fit."""
    if not slots.is_auto:
        return slots.of(n_experts)
    if device.shares_host_memory and not memory_is_given(device):
        return max(1, round(n_experts * AUTO_SHARE))
    return n_experts


def slots_that_fit(
    experts: _core.Experts, device: _core.DeviceInfo, graphs: PromptGraphs | None, spare: int
) -> int:
    """Return the number of slots that leave `spare` bytes, and memory to the graphs of prompts.

    If all experts fit, prompts do not stream and need no large graphs.
    """
    fit = experts.slots_that_fit(spare)
    if graphs is None or fit >= sum(layer.n_expert for layer in experts.layers):
        return fit
    memory = next(each.memory for each in _core.devices() if each.name == device.name)
    return experts.slots_that_fit(spare + graphs.room(memory.free + experts.slots.bytes))


def attach_at_most(experts: _core.Experts, n_slots: int) -> int:
    """Attach `n_slots` slots, or fewer if the device refuses so many, and return their number."""
    while n_slots:
        try:
            experts.attach_slots(n_slots)
            return n_slots
        except OutOfMemoryError:
            n_slots = n_slots * 15 // 16  # The free memory may be fragmented.
    experts.attach_slots(0)
    return 0


def _what_fits(
    experts: _core.Experts, device: _core.DeviceInfo, n_experts: int, graphs: PromptGraphs | None
) -> list[str]:
    """Attach as many slots as fit, and return a note if they hold fewer experts than wanted."""
    wanted = wanted_slots(device, Slots(), n_experts)
    spare = margin(device.memory.size, shares_host_memory=device.shares_host_memory)
    if graphs is not None and experts.slots_that_fit(spare) < n_experts:
        graphs.measure()
    n_slots = attach_at_most(experts, min(wanted, slots_that_fit(experts, device, graphs, spare)))
    if n_slots == wanted:
        return []
    room = f"{room_of(device.name, device.memory)}, {size(spare)} of it left to the driver's libraries"
    return [f"slots: {n_slots} of {n_experts} experts fit into {room}"]

"""Attaching slots to the experts of models: a given number, or the number that fits.

A model's layers may be on several devices. A number of slots is that of all devices together. Each of them
has a part in proportion to the experts of its layers, as far as it has room, and leaves memory free of its
own.

A draft has to be fast, so all of its experts get slots or none does. Without slots, its experts run on the
CPU. They take their slots before the target's slots are counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from spac import _core
from spac.config import EngineConfig, Slots
from spac.errors import InputError, OutOfMemoryError
from spac.machine.device_memory import room_of, size, spare
from spac.model.devices import memory_is_given
from spac.model.paging import AUTO_SHARE
from spac.model.pair import ModelPair

if TYPE_CHECKING:
    from spac.engine.prompt_graphs import PromptGraphs

QUANT = "q4_0"
"""The type of the copies of experts with which a target drafts for itself."""
_PATIENCE_S = 60.0  # timeout for copying all experts


def attach_draft(experts: _core.Experts | None, device: _core.DeviceInfo) -> list[str]:
    """Make all experts of a draft resident if they fit, unless they are, and return notes for the user."""
    if experts is None or experts.n_layer == 0:
        return []
    n_experts = sum(layer.n_expert for layer in experts.layers)
    if experts.slots.n_slots == n_experts:
        return []
    if experts.slots_that_fit(spare(device)) >= n_experts:
        try:
            experts.attach_slots(n_experts)
        except OutOfMemoryError:  # The free memory is large enough in total, but may be fragmented.
            pass
        else:
            shape = (experts.n_layer, experts.n_expert)
            experts.submit(np.ones(shape, np.int32), np.ones(experts.n_layer, np.int32))
            experts.settle(_PATIENCE_S)
            return []
    room = room_of(device.name, device.memory)
    return [f"draft: its {n_experts} experts do not fit into {room}: they run on the CPU"]


def attach_copies(config: EngineConfig, pair: ModelPair) -> list[str]:
    """Make the low-bit copies with which a target drafts for itself, and return notes for the user.

    No copies are made for other ways to draft, nor if they exist. Raise InputError if the target cannot
    draft for itself, and OutOfMemoryError if the copies do not fit.
    """
    if not config.drafts_itself:
        return []
    experts, device, name = pair.experts, pair.placement.device, Path(config.target).name
    if experts is None or device is None:
        raise InputError(f"draft-type self needs experts on a device, and {name} has none: choose another")
    if len(experts.devices) > 1:
        raise InputError(
            f"draft-type self needs all experts on one device, and {name} is on "
            f"{pair.placement.device_names}: choose another, or --split-mode none"
        )
    if pair.target.has_window and not config.swa_full:
        raise InputError(f"draft-type self goes back in the cache, and {name} has a window: add --swa-full")
    needed, free = experts.draft_copy_bytes(QUANT), device.memory.free
    if not experts.draft_bytes:
        try:
            experts.attach_draft_copies(QUANT, pair.placement.prompt_threads)
        except OutOfMemoryError:
            raise OutOfMemoryError(
                f"the {QUANT} copies of the experts of {name} take {size(needed)}, and "
                f"{size(free)} of {device.name} are free: choose another --draft-type"
            ) from None
    return [f"draft: the target drafts with {QUANT} copies of its experts, {size(needed)}"]


def detach_draft(experts: _core.Experts | None) -> None:
    """Free the slots of a draft's experts."""
    if experts is not None and experts.slots.n_slots:
        experts.attach_slots(0)


def check_foretells(
    name: str, config: EngineConfig, target: _core.Experts, draft: _core.Experts | None
) -> None:
    """Raise InputError unless the draft's routes name the target's experts.

    `name` is the name of the scheduler that needs the routes.
    """
    fault = _misfit(config, target, draft)
    if fault:
        raise InputError(
            f"scheduler '{name}' follows the routes of a draft that is a quantized copy of the target, and "
            f"{fault}: add --draft-type self, or make one with llama.cpp's llama-quantize and give it "
            f"as --draft, or choose another --scheduler"
        )


def _misfit(config: EngineConfig, target: _core.Experts, draft: _core.Experts | None) -> str | None:
    """Return why the draft's routes do not name the target's experts, or None if they do."""
    if config.drafts_itself:
        return None
    if config.draft is None or not config.draft_types:
        off = " (--draft-length 0)" if config.draft is not None and config.longest_draft == 0 else ""
        return f"nothing is drafted with a model{off}"
    if config.draft_types != ("draft-simple",):
        return f"--draft-type {','.join(config.draft_types)} is not draft-simple alone"
    path = Path(config.draft).name
    if draft is None or draft.n_layer == 0:
        return f"{path} has no experts"
    theirs, ours = ([layer.n_expert for layer in each.layers] for each in (draft, target))
    if len(theirs) != len(ours):
        return f"{path} has {len(theirs)} MoE layers where the target has {len(ours)}"
    for i, (n, wanted) in enumerate(zip(theirs, ours, strict=True)):
        if n != wanted:
            return f"{path} has {n} experts in MoE layer {i} where the target has {wanted}"
    return None


def holders(experts: _core.Experts) -> list[_core.DeviceInfo]:
    """Return the devices that hold layers with experts, with their memory as it is now."""
    known = {device.name: device for device in _core.devices()}
    return [known[each.name] for each in experts.devices]


def spares(experts: _core.Experts) -> list[int]:
    """Return the bytes that slots leave free on each of the devices that hold layers with experts."""
    return [spare(device) for device in holders(experts)]


def attach_slots(
    experts: _core.Experts,
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
        return _what_fits(experts, n_experts, graphs)
    n_slots = slots.of(n_experts)
    if draft is not None and draft.slots.n_slots:
        try:
            experts.attach_slots(n_slots, spares(experts))
            return _little_left(experts)
        except OutOfMemoryError:
            detach_draft(draft)
        _exactly(experts, n_slots)
        return [f"draft: its experts run on the CPU, to leave room for {n_slots} slots"]
    _exactly(experts, n_slots)
    return _little_left(experts)


def _little_left(experts: _core.Experts) -> list[str]:
    """Return notes if the memory left on a device may be too small for llama.cpp's kernels.

    The kernels allocate memory while they run, and end the process if they get none. The user's limit does
    not cover their memory, so there is no note if a limit is set.
    """
    notes = []
    for device in holders(experts):
        memory, wanted = device.memory, spare(device)
        if not (device.shares_host_memory or memory.limit or memory.free >= wanted):
            left = f"slots: they leave {size(memory.free)} of {device.name} to llama.cpp's kernels"
            notes.append(
                f"{left}, which end the process where they need more; --slots auto leaves {size(wanted)}"
            )
    return notes


def _exactly(experts: _core.Experts, n_slots: int) -> None:
    """Attach `n_slots` slots, or raise OutOfMemoryError with the number that fits."""
    try:
        if n_slots:
            experts.attach_slots(n_slots, spares(experts))
    except OutOfMemoryError:
        fit = experts.slots_that_fit(0)
        raise OutOfMemoryError(
            f"{n_slots} slots do not fit into what is left of {_rooms(holders(experts))}: "
            f"{fit} would; give --slots {fit} or --slots auto"
        ) from None


def _rooms(devices: Sequence[_core.DeviceInfo]) -> str:
    """Return a phrase for the memory that spac may use on these devices."""
    return " and ".join(room_of(device.name, device.memory) for device in devices)


def wanted_slots(devices: Sequence[_core.DeviceInfo], slots: Slots, n_experts: int) -> int:
    """Return the number of slots that the user wants, which may be more than fit."""
    if not slots.is_auto:
        return slots.of(n_experts)
    if any(device.shares_host_memory and not memory_is_given(device) for device in devices):
        return max(1, round(n_experts * AUTO_SHARE))
    return n_experts


def beside_graphs(experts: _core.Experts, graphs: PromptGraphs | None, free: Sequence[int]) -> list[int]:
    """Return the bytes that slots leave of each device: the `free` ones, and memory for graphs of prompts.

    If all experts fit, prompts do not stream and need no large graphs.
    """
    if graphs is None or experts.slots_that_fit(free) >= sum(layer.n_expert for layer in experts.layers):
        return list(free)
    taken = [each.slots.bytes for each in experts.devices]
    return [
        spare + graphs.memory.room(device, device.memory.free + slots)
        for device, spare, slots in zip(holders(experts), free, taken, strict=True)
    ]


def attach_at_most(experts: _core.Experts, n_slots: int, free: Sequence[int] | None = None) -> int:
    """Attach `n_slots` slots, or fewer if a device refuses so many, and return their number.

    They leave `free` bytes of each device as far as possible, and its margin by default.
    """
    free = spares(experts) if free is None else free
    while n_slots:
        try:
            experts.attach_slots(n_slots, free)
            return n_slots
        except OutOfMemoryError:
            n_slots = n_slots * 15 // 16  # The free memory may be fragmented.
    experts.attach_slots(0)
    return 0


def _what_fits(experts: _core.Experts, n_experts: int, graphs: PromptGraphs | None) -> list[str]:
    """Attach as many slots as fit, and return a note if they hold fewer experts than wanted."""
    devices, free = holders(experts), spares(experts)
    wanted = wanted_slots(devices, Slots(), n_experts)
    if graphs is not None and experts.slots_that_fit(free) < n_experts:
        graphs.measure()
    beside = beside_graphs(experts, graphs, free)
    n_slots = attach_at_most(experts, min(wanted, experts.slots_that_fit(beside)), beside)
    if n_slots == wanted:
        return []
    room = f"{_rooms(devices)}, {size(sum(free))} of it left to the driver's libraries"
    return [f"slots: {n_slots} of {n_experts} experts fit into {room}"]

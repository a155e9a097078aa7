"""The experts of a draft that is a Mixture-of-Experts model, or a target that drafts for itself.

A draft has to be fast, so all of its experts get slots or none does. Without slots, its experts run on the
CPU, as they do after loading. The draft's experts take their slots before the target's slots are counted. The
routes of a draft that is a quantized copy of the target may predict the target's routes.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from spac import _core
from spac.config import EngineConfig
from spac.errors import InputError, OutOfMemoryError
from spac.machine.device_memory import margin, room_of, size
from spac.model.pair import ModelPair

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
    spare = margin(device.memory.size, shares_host_memory=device.shares_host_memory)
    if experts.slots_that_fit(spare) >= n_experts:
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
    experts, device, name = pair.experts, pair.device, Path(config.target).name
    if experts is None or device is None:
        raise InputError(f"draft-type self needs experts on a device, and {name} has none: choose another")
    if len(experts.devices) > 1:
        raise InputError(
            f"draft-type self needs all experts on one device, and {name} is on {pair.device_names}: "
            "choose another, or --split-mode none"
        )
    if pair.target.has_window and not config.swa_full:
        raise InputError(f"draft-type self goes back in the cache, and {name} has a window: add --swa-full")
    needed, free = experts.draft_copy_bytes(QUANT), device.memory.free
    if not experts.draft_bytes:
        try:
            experts.attach_draft_copies(QUANT, pair.prompt_threads)
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

"""A draft model that has experts itself: all belong on the device, and its routes may foretell the target's.

A draft is there to be fast: it runs on the device wholly or its experts run on the CPU, as they did when it
was loaded. They take their slots before the target's are counted.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from spac import _core
from spac.config import EngineConfig
from spac.errors import InputError, OutOfMemoryError
from spac.machine.device_memory import margin, room_of

_PATIENCE_S = 60.0  # for the copies of all experts


def attach_draft(experts: _core.Experts | None, device: _core.DeviceInfo) -> list[str]:
    """Have all experts of a draft resident where they fit; notes for the user. They may be there already."""
    if experts is None or experts.n_layer == 0:
        return []
    n_experts = sum(layer.n_expert for layer in experts.layers)
    if experts.slots.n_slots == n_experts:
        return []
    spare = margin(device.memory.size, is_stand_in=device.is_stand_in)
    if experts.slots_that_fit(spare) >= n_experts:
        try:
            experts.attach_slots(n_experts)
        except OutOfMemoryError:  # memory may be too fragmented for what its sum promised
            pass
        else:
            shape = (experts.n_layer, experts.n_expert)
            experts.submit(np.ones(shape, np.int32), np.ones(experts.n_layer, np.int32))
            experts.settle(_PATIENCE_S)
            return []
    room = room_of(device.name, device.memory)
    return [f"draft: its {n_experts} experts do not fit into {room}: they run on the CPU"]


def detach_draft(experts: _core.Experts | None) -> None:
    """Give the slots back."""
    if experts is not None and experts.slots.n_slots:
        experts.attach_slots(0)


def check_foretells(
    name: str, config: EngineConfig, target: _core.Experts, draft: _core.Experts | None
) -> None:
    """Raises InputError, one line, unless the draft's routes name the target's experts; `name`: of the
    scheduler that needs them."""
    fault = _misfit(config, target, draft)
    if fault:
        raise InputError(
            f"scheduler '{name}' follows the routes of a draft that is a quantized copy of the target, and "
            f"{fault}: make one with llama.cpp's llama-quantize and give it as --draft, or choose another "
            f"--scheduler"
        )


def _misfit(config: EngineConfig, target: _core.Experts, draft: _core.Experts | None) -> str | None:
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

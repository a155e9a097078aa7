"""The rehearsal: the largest graphs run once before slots are attached.

A device's libraries take memory when kernels run for the first time: for pools of scratch, workspaces, the
kernels' code, and captured graphs. After the rehearsal they have it, and the free memory is what slots may
take. The CPU computes no experts meanwhile, so a rehearsal takes as long as the device's part of a prompt.
"""

from __future__ import annotations

from contextlib import suppress

from spac import _core
from spac.errors import OutOfMemoryError
from spac.machine.device_memory import size
from spac.model.c_api import Context, refusal
from spac.model.pair import ModelPair

_SINGLE = 3  # tokens that `_core.rehearse` evaluates one by one


def rehearses(pair: ModelPair) -> bool:
    """Return True if the pair's devices have libraries that take memory. An RPC server's have their own."""
    place = pair.placement
    return place.remote is None and bool(place.devices) and not place.shares_cores


def rehearse(pair: ModelPair) -> dict[str, float]:
    """Run the largest graphs of both models once, and return the memory that the target's kernels took.

    The result has the bytes for each token by the device's name. Nothing stays in the contexts. The target's
    experts have no slots before and after. Raise OutOfMemoryError if a device has no memory for the kernels.
    """
    experts = pair.experts
    assert experts is not None
    n_tokens = max(1, min(pair.target_context.graph_tokens, pair.sequence_context - _SINGLE))
    if pair.draft_context is not None and not pair.placement.draft_on_cpu and pair.draft is not None:
        _run(pair.draft_context, pair.draft_experts, n_tokens)
    before = _taken(pair)
    with suppress(OutOfMemoryError):  # Where no slot fits, the device computes no experts later either.
        experts.attach_slots(experts.n_layer)
    try:
        _run(pair.target_context, experts, n_tokens)
    finally:
        experts.attach_slots(0)
    return {name: max(0, n - before[name]) / n_tokens for name, n in _taken(pair).items()}


def _run(context: Context, experts: _core.Experts | None, n_tokens: int) -> None:
    """Evaluate a prompt of `n_tokens` tokens and some single ones, for which CUDA captures graphs."""
    if experts is not None:
        experts.set_rehearsing(True)
    try:
        status = _core.rehearse(context.pointer, n_tokens)
    finally:
        if experts is not None:
            experts.set_rehearsing(False)
    if status >= 0:  # Above 0 the context is too short for all tokens.
        return
    lacked = {each.name: _core.take_kernel_refusal(each.name) for each in _core.devices()}
    for name, n_bytes in lacked.items():
        if n_bytes:
            raise OutOfMemoryError(
                f"the kernels of {name} need {size(n_bytes)} more than is free beside the models: give a "
                "smaller --ubatch or --ctx, or fewer --gpu-layers"
            )
    raise refusal("llama.cpp could not evaluate a first prompt")


def _taken(pair: ModelPair) -> dict[str, int]:
    known = {device.name: device.memory.kernels for device in _core.devices()}
    return {device.name: known[device.name] for device in pair.placement.devices}

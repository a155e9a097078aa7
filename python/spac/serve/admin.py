"""Requests of the server's owner, which change the running engine: the device memory that it takes."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from spac.errors import InputError
from spac.machine.device_memory import in_use
from spac.serve.refusal import Refusal

if TYPE_CHECKING:
    from spac.engine import Engine

ADMIN = "/admin/"
"""The beginning of the paths of these requests."""
VRAM = "/admin/vram"


def check_peer(client: tuple[str, int] | None) -> None:
    """Raise Refusal unless a client of a server without a key is on this machine."""
    try:
        is_here = ipaddress.ip_address(client[0] if client else "").is_loopback
    except ValueError:
        is_here = False
    if not is_here:
        raise Refusal(403, f"{ADMIN}… needs an API key from another machine: start the server with --api-key")


def change_memory(engine: Engine, request: Mapping[str, Any]) -> dict[str, Any]:
    """Change the limit of device memory, the number of slots, or both, and return what holds now.

    The call waits for the end of the step that is computed. Raise Refusal for a bad request.
    """
    if engine.experts is None:
        remedy = "a model with experts has some if the server starts with --slots or a smaller --vram-limit"
        raise Refusal(400, f"the model runs without the split, so no slots can shrink or grow: {remedy}")
    if not request or (unknown := [name for name in request if name not in ("limit", "slots")]):
        given = f"not '{unknown[0]}'" if request else "and one is needed"
        raise Refusal(400, f"the fields are limit (such as 8G, 50% or none) and slots, {given}")
    try:
        if "limit" in request:
            limit = _value(request, "limit")
            engine.set_vram_limit(None if limit == "none" else limit)
        if "slots" in request:
            engine.set_slots(_value(request, "slots"))
    except InputError as error:
        raise Refusal(400, str(error)) from None
    slots = engine.experts.slots
    return {
        "limit": sum(device.memory.limit for device in engine.devices) or None,
        "used": in_use(",".join(device.name for device in engine.devices)),
        "slots": slots.n_slots,
        "slot_bytes": slots.bytes,
        "experts": engine.n_experts,
    }


def _value(request: Mapping[str, Any], name: str) -> str | int | float:
    """Return the value of a field."""
    value = request[name]
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise Refusal(400, f"{name}: a number or a text is needed")
    return value

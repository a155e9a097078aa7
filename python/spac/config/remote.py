"""The addresses of RPC servers with the numbers of layers that they hold, and devices for slots alone."""

from __future__ import annotations

import re
from typing import Any

from spac.config.fields import names_in
from spac.errors import InputError

_ADDRESS = re.compile(r"([^\s:,;#/@\[\]]+):([0-9]{1,5})")
MOST_LAYERS = 512
MOST_DEVICES = 16
"""LLAMA_MAX_DEVICES of the pinned llama.cpp: the most devices of a model, this machine's among them."""


def addresses(value: Any) -> tuple[str, ...]:
    """Return the addresses HOST:PORT in a text or a sequence. Raises InputError."""
    found = []
    for each in names_in(value):
        match = _ADDRESS.fullmatch(each.strip()) if isinstance(each, str) else None
        if match is None or not 1 <= int(match[2]) <= 65535:
            raise InputError(
                f"rpc: {each!r} is not HOST:PORT, with a name or an IPv4 address and a port from 1 to 65535"
            )
        found.append(f"{match[1]}:{int(match[2])}")
    if len(set(found)) < len(found):
        raise InputError(f"rpc: a server stands twice in {', '.join(found)}: name each once")
    if len(found) >= MOST_DEVICES:
        raise InputError(f"rpc: {len(found)} servers are too many: at most {MOST_DEVICES - 1} work")
    return tuple(found)


def slot_devices(value: Any) -> tuple[str, ...]:
    """Return the names of devices in a text or a sequence. Raises InputError."""
    found = tuple(str(each).strip() for each in names_in(value))
    for name in found:
        if name.lower() in ("", "auto", "cpu"):
            raise InputError(f"slot_devices: '{name}' is no device that can hold slots: name one (CUDA1)")
        if [each.lower() for each in found].count(name.lower()) > 1:
            raise InputError(f"slot_devices: {name} is named twice, name each device once")
    if len(found) >= MOST_DEVICES:
        raise InputError(f"slot_devices: {len(found)} devices are too many: {MOST_DEVICES - 1} work at most")
    return found


def layer_counts(value: Any) -> tuple[int, ...]:
    """Return the numbers of layers in a text, a number or a sequence. Raises InputError."""
    found = []
    for each in names_in(value):
        text = str(each).strip()
        if not text.isdecimal() or int(text) > MOST_LAYERS:
            raise InputError(f"rpc_layers: {each!r} is not a number of layers from 0 to {MOST_LAYERS}")
        found.append(int(text))
    return tuple(found)


def check(rpc: tuple[str, ...] | None, layers: tuple[int, ...] | None) -> None:
    """Raise InputError if the numbers of layers do not fit the servers."""
    if layers is not None and not rpc:
        raise InputError("rpc_layers needs RPC servers: add --rpc HOST:PORT")
    if layers is not None and rpc is not None and len(layers) != len(rpc):
        raise InputError(f"rpc_layers has {len(layers)} numbers for {len(rpc)} servers: give one for each")

"""The memory that the graphs of a prompt take of each device, measured by llama.cpp without allocating it."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import TYPE_CHECKING

from spac import _core
from spac.machine.device_memory import margin

if TYPE_CHECKING:
    from spac.model.c_api import Context

ROOM_SHARE = 1 / 16
"""The largest share of the free memory that slots of `--slots auto` leave to larger graphs."""


class GraphMemory:
    """Knows how many bytes of each device graphs take beyond those that a context was made for.

    Buffers are maxima over a graph, so a line through the smallest and the largest size is an upper bound
    between them.
    """

    def __init__(self, context: Context, devices: Sequence[_core.DeviceInfo], most: int) -> None:
        """Store the context, its devices, and the tokens of its largest graph."""
        self._context, self._most = context, most
        self._small = context.graph_tokens
        self._devices = {device.name: device for device in devices}
        self._token_bytes: dict[str, float] = {}

    @property
    def known(self) -> bool:
        """True after `measure`."""
        return bool(self._token_bytes)

    @property
    def names(self) -> str:
        """The devices' names."""
        return " or ".join(self._devices)

    def measure(self) -> None:
        """Measure what graphs take, once. Do not call it while the session runs."""
        if self.known:
            return
        address = self._context.pointer
        small, large = (_core.graph_bytes(address, size) for size in (self._small, self._most))
        self._token_bytes = {
            name: max(1.0, (large.get(name, 0) - small.get(name, 0)) / (self._most - self._small))
            for name in self._devices
        }

    def more(self, name: str, n_tokens: int) -> int:
        """Return the bytes of a device that graphs of `n_tokens` take beyond those of the small graphs."""
        return ceil((n_tokens - self._small) * self._token_bytes.get(name, 0.0))

    def room(self, name: str, free: int) -> int:
        """Return the bytes of a device's `free` ones that slots leave to larger graphs.

        The buffers that the context has already are not part of `free`.
        """
        taken = self.more(name, self._context.graph_tokens)
        return max(0, min(self.more(name, self._most), int((free + taken) * ROOM_SHARE)) - taken)

    def fits(self, step: int) -> int:
        """Return the tokens of the largest graph for which all devices have memory now, in steps."""
        if not self.known:
            return self._small
        return min((self._fits_on(name, step) for name in self._devices), default=self._most)

    def _fits_on(self, name: str, step: int) -> int:
        memory = next(each.memory for each in _core.devices() if each.name == name)
        spare = margin(memory.size, shares_host_memory=self._devices[name].shares_host_memory)
        free = memory.free - spare + self.more(name, self._context.graph_tokens)
        return (self._small + int(max(0, free) / self._token_bytes[name])) // step * step

"""The rule for the size of a prompt's graphs.

With prefill streaming, each graph brings all experts that are not resident over the link, which takes as long
for many tokens as for few. So a prompt of n tokens that streams is evaluated in as few graphs as possible,
all equally large:

    size = ceil(n / ceil(n / most))

`most` is `GraphTokens.LARGE`, one batch at most, or what all devices have memory for. A graph streams from a
number of tokens on that `prefill_streaming` estimates, or that the user gives. If graphs of this size do not
stream, the prompt is split, in graphs of the context's own size.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import TYPE_CHECKING

from spac import _core
from spac.config.values import GraphTokens
from spac.machine.device_memory import spare

if TYPE_CHECKING:
    from spac.engine.prefill_streaming import PromptStreams
    from spac.model.c_api import Context

ROOM_SHARE = 1 / 16
"""The largest share of the free memory that slots of `--slots auto` leave to larger graphs."""
_STEP = 256  # tokens; the loop plans buffers for multiples of it


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
        self.kernel_bytes: dict[str, float] = {}
        """The bytes of each device that pools of its kernels take for each token of a graph, where known."""

    @property
    def known(self) -> bool:
        """True after `measure`."""
        return bool(self._token_bytes)

    @property
    def names(self) -> str:
        """The devices' names."""
        return " or ".join(self._devices)

    def measure(self) -> None:
        """Measure what graphs take, once. Do not call it while the loop computes."""
        if self.known:
            return
        address = self._context.pointer
        small, large = (_core.graph_bytes(address, size) for size in (self._small, self._most))
        self._token_bytes = {
            name: max(1.0, (large.get(name, 0) - small.get(name, 0)) / (self._most - self._small))
            for name in self._devices
        }

    def more(self, name: str, n_tokens: int) -> int:
        """Return the bytes of a device that graphs of `n_tokens` take beyond those of the small graphs.

        These are those of llama.cpp's buffers. The pools of kernels never shrink, and `pools` has theirs.
        """
        return ceil((n_tokens - self._small) * self._token_bytes.get(name, 0.0))

    def pools(self, device: _core.DeviceInfo, n_tokens: int) -> int:
        """Return the bytes by which pools of a device's kernels grow with graphs of `n_tokens`."""
        wanted = ceil(n_tokens * self.kernel_bytes.get(device.name, 0.0))
        return max(0, wanted - device.memory.kernels)

    def room(self, device: _core.DeviceInfo, free: int) -> int:
        """Return the bytes of a device's `free` ones that slots leave to larger graphs.

        The buffers that the context has already are not part of `free`.
        """
        taken = self.more(device.name, self._context.graph_tokens)
        most = self.more(device.name, self._most) + self.pools(device, self._most)
        return max(0, min(most, int((free + taken) * ROOM_SHARE)) - taken)

    def fits(self, step: int) -> int:
        """Return the tokens of the largest graph for which all devices have memory now, in steps."""
        if not self.known:
            return self._small
        return min((self._fits_on(name, step) for name in self._devices), default=self._most)

    def _fits_on(self, name: str, step: int) -> int:
        device = next(each for each in _core.devices() if each.name == name)
        free = device.memory.free - spare(device) + self.more(name, self._context.graph_tokens)
        sizes = range(self._most // step * step, self._small, -step)
        return next((n for n in sizes if self.more(name, n) + self.pools(device, n) <= free), self._small)


class PromptGraphs:
    """Chooses the size of each prompt's graphs, from the context's own size up to `GraphTokens.LARGE`."""

    def __init__(
        self, context: Context, devices: Sequence[_core.DeviceInfo], streams: PromptStreams, notes: list[str]
    ) -> None:
        """Store what the choice depends on. Notes for the user are appended to `notes`.

        `devices` are those of the context.
        """
        self._streams, self._notes = streams, notes
        self.small = context.graph_tokens
        """The tokens of the graphs that the context was made for."""
        self._most = largest_graph(context)
        self.memory = GraphMemory(context, devices, self._most)
        """The memory that graphs take of each device."""

    def measure(self) -> None:
        """Measure what graphs take of the devices' memory, once. Do not call it while the loop computes."""
        if self._streams.tokens:
            self.memory.measure()

    def choose(self, n_pending: int, n_failed: int) -> int:
        """Return the tokens of the next graph of a prompt with `n_pending` tokens to evaluate.

        `n_failed` is the size for which there was no memory, or 0. The size `small` may stand for several
        graphs.
        """
        if n_failed:
            self._most = max(self.small, n_failed // 2 // _STEP * _STEP)
            self._notes.append(
                f"prompts: {self.memory.names} has no memory for graphs of {n_failed} tokens; from now on "
                f"they have {self._most} at most"
            )
        size = ceil(n_pending / ceil(n_pending / self._that_fits()))
        streams = self._streams.share < 1 and 0 < self._streams.tokens <= size
        return max(size, self.small) if streams else self.small

    @property
    def graph_s(self) -> float:
        """The least seconds of a large graph: those in which its experts come to the device."""
        return self._streams.graph_s

    def _that_fits(self) -> int:
        """Return the tokens of the largest graph for which the devices have memory now."""
        return max(self.small, min(self._most, self.memory.fits(_STEP)))


def largest_graph(context: Context) -> int:
    """Return the tokens of the largest graph that `auto` may choose for a context: one batch at most."""
    return max(context.graph_tokens, min(GraphTokens.LARGE, context.batch_tokens))


def may_grow(context: Context, *, forgets: bool) -> bool:
    """Return True if larger graphs than those that a context was made for are possible.

    `forgets` is true for a memory that keeps a window of the past, which was made for the small graphs.
    """
    return not forgets and largest_graph(context) > context.graph_tokens

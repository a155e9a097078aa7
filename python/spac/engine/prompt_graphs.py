"""The choice of a prompt's graphs: few large graphs bring the experts to the device few times.

With prefill streaming, each graph brings all experts that are not resident over the link. A prompt of n
tokens in graphs of g tokens does so ceil(n / g) times, so the largest graph that memory allows is the best.
What limits it is the memory of llama.cpp's compute buffers, which the context measures.
"""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

from spac import _core
from spac.config.values import GraphTokens
from spac.machine.device_memory import margin

if TYPE_CHECKING:
    from spac.engine.prefill_streaming import PromptStreams
    from spac.model.c_api import Context

_STEP = 256  # tokens; a session plans buffers for multiples of it
ROOM_SHARE = 1 / 16
"""The largest share of the free memory that slots of `--slots auto` leave to larger graphs."""


class PromptGraphs:
    """Chooses the size of each prompt's graphs, from the context's own size up to `GraphTokens.LARGE`."""

    def __init__(
        self, context: Context, device: _core.DeviceInfo, streams: PromptStreams, notes: list[str]
    ) -> None:
        """Store what the choice depends on. Notes for the user are appended to `notes`."""
        self._context, self._device, self._streams, self._notes = context, device, streams, notes
        self.small = context.graph_tokens
        """The tokens of the graphs that the context was made for."""
        self._most = largest_graph(context)
        self._base_bytes, self._token_bytes = 0, 0.0  # the buffers of the small graph, and each token more

    def measure(self) -> None:
        """Measure what graphs take of the device's memory, once. Do not call it while the session runs.

        Buffers are maxima over a graph, so a line through both ends is an upper bound between them.
        """
        if self._token_bytes or not self._streams.tokens:
            return
        address = self._context.pointer
        self._base_bytes = _core.graph_bytes(address, self.small)
        more = _core.graph_bytes(address, self._most) - self._base_bytes
        self._token_bytes = max(1.0, more / (self._most - self.small))

    def room(self, free: int) -> int:
        """Return the bytes of `free` that slots leave to larger graphs; 0 if nothing was measured.

        The buffers that the context has already are not part of `free`.
        """
        if not self._token_bytes:
            return 0
        taken = self._bytes(self._context.graph_tokens)
        return max(0, min(self._bytes(self._most), int((free + taken) * ROOM_SHARE)) - taken)

    def choose(self, n_pending: int, n_failed: int) -> int:
        """Return the tokens of each graph of a prompt with `n_pending` tokens to evaluate.

        `n_failed` is the size for which there was no memory, or 0. The graphs are equally large, and none of
        them is too small to stream.
        """
        if n_failed:
            self._most = max(self.small, n_failed // 2 // _STEP * _STEP)
            self._notes.append(
                f"prompts: {self._device.name} has no memory for graphs of {n_failed} tokens; from now on "
                f"they have {self._most} at most"
            )
        most = self._that_fits()
        size = ceil(n_pending / ceil(n_pending / most))
        return size if size > self.small and 0 < self._streams.tokens < size else self.small

    @property
    def graph_s(self) -> float:
        """The least seconds of a large graph: those in which its experts come to the device."""
        return self._streams.graph_s

    def _bytes(self, n_tokens: int) -> int:
        """Return the bytes that graphs of `n_tokens` take beyond those of the small graphs."""
        return ceil((n_tokens - self.small) * self._token_bytes)

    def _that_fits(self) -> int:
        """Return the tokens of the largest graph for which the device has memory now."""
        if not self._token_bytes:
            return self.small
        memory = next(each.memory for each in _core.devices() if each.name == self._device.name)
        spare = margin(memory.size, shares_host_memory=self._device.shares_host_memory)
        free = memory.free - spare + self._bytes(self._context.graph_tokens)
        fits = (self.small + int(max(0, free) / self._token_bytes)) // _STEP * _STEP
        return max(self.small, min(self._most, fits))


def largest_graph(context: Context) -> int:
    """Return the tokens of the largest graph that `auto` may choose for a context: one batch at most."""
    return max(context.graph_tokens, min(GraphTokens.LARGE, context.batch_tokens))


def may_grow(context: Context, *, forgets: bool) -> bool:
    """Return True if larger graphs than those that a context was made for are possible.

    `forgets` is true for a memory that keeps a window of the past, which was made for the small graphs.
    """
    return not forgets and largest_graph(context) > context.graph_tokens

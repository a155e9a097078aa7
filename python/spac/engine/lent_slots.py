"""Slots that lend their memory to the large graphs of a long prompt.

Where slots have taken a device's memory, a long prompt needs many small graphs, and each of them brings all
experts that are not resident over the link. For the time of the prompt, fewer slots may save more copies than
they cost. With S slots of which S' remain, graphs of g instead of m tokens, n tokens, and `upload_s` for a
slot's expert, a prompt takes

    T = n · T(g) / g + upload_s · (S' + ceil(n / g) · (S - S') + S)

because the contents of all slots are copied anew twice: S' while the prompt is read, S behind it. These last
copies run in the background, the most wanted experts first, while tokens are generated. T counts all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil
from typing import Protocol

from spac import _core
from spac.engine.graph_memory import GraphMemory

_LEAST = 0.25
"""The least share of the slots that remains."""


Resize = Callable[[int, Sequence[int] | None], None]


class _Context(Protocol):
    @property
    def pointer(self) -> int:
        """The address of the llama_context."""

    @property
    def graph_tokens(self) -> int:
        """The tokens of the largest graph that its buffers hold."""


class LentSlots:
    """Lends memory of slots to one context's graphs, and takes it back."""

    def __init__(self, experts: _core.Experts, context: _Context, resize: Resize) -> None:
        """Store the parts; `resize` replaces the slots by so many, or fewer if a device refuses them.

        It gets the bytes of each device that slots leave free.
        """
        self._experts, self._context, self._resize = experts, context, resize
        self._before = self._left = 0  # the slots, while some are lent

    @property
    def are_lent(self) -> bool:
        """True until the memory is taken back."""
        return self._before > 0

    def left(self, memory: GraphMemory, n_tokens: int) -> int:
        """Return the slots that remain beside graphs of `n_tokens`; 0 for too few."""
        n_slots, devices = self._experts.slots.n_slots, self._experts.devices
        if memory.fits(1, without=[each.name for each in devices]) < n_tokens:
            return 0  # A device without slots has no memory to lend.
        beside = self._beside(memory, n_tokens)
        if any(
            memory.free(each.name) + each.slots.bytes < n for each, n in zip(devices, beside, strict=True)
        ):
            return 0  # All slots of a device would not suffice.
        fit = min(n_slots, self._experts.slots_that_fit(beside))
        return fit if fit >= max(1, _LEAST * n_slots) else 0

    def _beside(self, memory: GraphMemory, n_tokens: int) -> list[int]:
        """Return the bytes of each device that slots have to leave free for graphs of `n_tokens`."""
        now = self._context.graph_tokens
        return [
            memory.spare(each.name) + memory.more(each.name, n_tokens) - memory.more(each.name, now)
            for each in self._experts.devices
        ]

    def copies(self, left: int, n_pending: int, size: int) -> int:
        """Return the copies of experts that lending costs a prompt of `n_pending` tokens."""
        n_slots = self._experts.slots.n_slots
        return left + ceil(n_pending / size) * (n_slots - left) + n_slots

    def lend(self, left: int, memory: GraphMemory, n_tokens: int) -> int:
        """Shrink the slots to `left` for graphs of `n_tokens`, and return the number that they have lost."""
        self._before = self._experts.slots.n_slots
        self._resize(left, self._beside(memory, n_tokens))
        self._left = self._experts.slots.n_slots
        return self._before - self._left

    def take_back(self, small: int) -> None:
        """Make the buffers of graphs of `small` tokens again, and as many slots as before.

        Slots that were changed meanwhile stay as they are. Do not call it while the session runs.
        """
        before, self._before = self._before, 0
        if before:
            _core.set_graph_tokens(self._context.pointer, small)
            if self._experts.slots.n_slots == self._left:
                self._resize(before, None)

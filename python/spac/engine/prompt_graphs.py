"""The choice of a prompt's graphs: their size, and whether they are streamed, split or divided.

With prefill streaming, each graph brings all experts that are not resident over the link. A prompt of n
tokens in graphs of g tokens does so ceil(n / g) times, so large graphs save copies. Their limits are the
memory of llama.cpp's compute buffers, which the context measures, and the time of computing, which is the
same for all sizes or longer in large graphs. In a divided graph, the CPU computes some of a layer's missing
experts while the others come over the link, which is best where both take about as long. So the engine
measures each piece of a prompt, and chooses the way and the size of the next piece by the times per token
(`prompt_times`).

Estimates are often wrong, so what may be better is tried. In each class of short graphs, all ways are
measured once. After that, a way that was slower is measured again now and then, in a small share of the time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import ceil
from typing import TYPE_CHECKING

import numpy as np

from spac.config.values import GraphTokens, StreamBatch
from spac.engine.graph_memory import GraphMemory
from spac.engine.prompt_habits import Habit
from spac.engine.prompt_times import PromptTimes, Way
from spac.scheduler.base import StateArrays

if TYPE_CHECKING:
    from spac import _core
    from spac.engine.lent_slots import LentSlots
    from spac.engine.prefill_streaming import PromptStreams
    from spac.model.c_api import Context

_STEP = 256  # tokens; a session plans buffers for multiples of it
_GROWTH = 4
"""The largest ratio of a graph's size to the largest that was measured."""
_LENT_GAIN = 0.9
"""Slots lend memory if a prompt is expected to take less than this share of its time without that."""
_DIVIDED = 2
"""The longest rest of a prompt that may be divided, in graphs of the context's own size."""
_MOVED = 0.1
"""The change of the share of experts in slots that makes measured times useless."""


class PromptGraphs:
    """Chooses the size of each prompt's graphs, from the context's own size up to `GraphTokens.LARGE`."""

    def __init__(
        self,
        context: Context,
        devices: Sequence[_core.DeviceInfo],
        streams: PromptStreams,
        notes: list[str],
        slots: LentSlots | None = None,
    ) -> None:
        """Store what the choice depends on. Notes for the user are appended to `notes`.

        `devices` are those of the context. `slots` may lend memory to graphs, until `take_back`.
        """
        self._context, self._streams, self._notes = context, streams, notes
        self._shares_cores = any(device.shares_host_cores for device in devices)
        self._slots = slots
        self.small = context.graph_tokens
        """The tokens of the graphs that the context was made for."""
        self._most = largest_graph(context)
        self.memory = GraphMemory(context, devices, self._most)
        """The memory that graphs take of each device."""
        self.times = PromptTimes()
        """The measured times of pieces."""
        self.way = Way(False, self.small)
        """The way of the piece that is evaluated."""
        self._share = -1.0  # of the experts in slots when times were measured
        self._has_lent = False
        self._planned = 0  # tokens of the buffers at the last measurement
        self._habits: dict[int, Habit] = {}  # by the number of bits of what is pending
        self._habit = Habit()  # of the piece that is evaluated

    def state(self) -> StateArrays:
        """Return the measured times for the next run, and the share of experts in slots at that time."""
        return {"times": self.times.state(), "share": np.array([self._share], np.float64)}

    def restore(self, state: StateArrays) -> None:
        """Continue from the result of `state`, or raise KeyError or ValueError if it is none."""
        (share,) = state["share"].tolist()
        self.times.restore(state["times"])
        self._share = float(share)

    def measure(self) -> None:
        """Measure what graphs take of the devices' memory, once. Do not call it while the session runs."""
        if self._streams.tokens:
            self.memory.measure()

    def choose(self, n_pending: int, n_failed: int) -> int:
        """Return the tokens of the next graph of a prompt with `n_pending` tokens to evaluate.

        `n_failed` is the size for which there was no memory, or 0. The remaining graphs are equally large. A
        size of `small` or less stands for several small graphs.
        """
        if n_failed:
            self._most = max(self.small, n_failed // 2 // _STEP * _STEP)
            self._notes.append(
                f"prompts: {self.memory.names} has no memory for graphs of {n_failed} tokens; from now on "
                f"they have {self._most} at most"
            )
        are_lent = self._slots is not None and self._slots.are_lent
        if not are_lent and abs(self._streams.share - self._share) > _MOVED:
            self._share = self._streams.share
            self.times.forget()
            self._habits.clear()
        self._habit = self._habits.setdefault(n_pending.bit_length(), Habit())
        self.way = self._fastest(n_pending)
        self._habit.note(self.way)
        self._streams.use(streams=self.way.streams, divides=self.way.divides)
        return self.way.size

    def observe(self, n_tokens: int, n_past: int, ns: int) -> None:
        """Learn from a piece that was evaluated as `choose` said: its tokens, those before it, its time."""
        planned, self._planned = self._planned, self._context.graph_tokens
        if self._slots is not None and self._slots.are_lent:  # Buffers are new for each such prompt.
            planned = self._planned
        # Short pieces say little. New buffers are touched for the first time.
        if n_tokens >= StreamBatch.LEAST and planned == self._planned:
            way = replace(self.way, size=min(self.way.size, n_tokens))
            self.times.observe(way, n_tokens, n_past, ns * 1e-9)
        self._habit.observe(ns * 1e-9)

    def _fastest(self, n_pending: int) -> Way:
        """Return the way that takes the least time per token, or one that is worth a trial."""
        small = min(n_pending, self.small)
        first = Way(0 < self._streams.tokens <= small, small)
        ways = [first, *self._others(n_pending, first)]
        times = {way: self._time(way, n_pending) for way in ways}
        best = self._habit.best(times, self.small)
        if (lent := self._lend(n_pending, times[best])) is not None:
            return lent
        return self._habit.trial(times, self.times, best, self.small, n_pending) or best

    def _lend(self, n_pending: int, best_s: float) -> Way | None:
        """Let slots lend memory to larger graphs, and return the way; None if that is not expected to pay.

        `best_s` is the seconds per token without it.
        """
        slots, streams = self._slots, self._streams
        fits = self._that_fits()
        if slots is None or slots.are_lent or not self.memory.known or not streams.tokens:
            return None
        found: dict[Way, tuple[float, int]] = {}
        for size in {ceil(n_pending / (1 << i)) for i in range(n_pending.bit_length())}:
            if not fits < size <= self._allowed():
                continue
            if left := slots.left(self.memory, ceil(size / _STEP) * _STEP):
                way = Way(True, size)
                copies_s = streams.upload_s(slots.copies(left, n_pending, size))
                found[way] = n_pending * self._time(way, n_pending) + copies_s, left
        if not found:
            return None
        way = min(found, key=found.__getitem__)
        seconds, left = found[way]
        if seconds >= _LENT_GAIN * n_pending * best_s:
            return None
        n_lent = slots.lend(left, self.memory, ceil(way.size / _STEP) * _STEP)
        note = f"prompts: slots lend memory to long prompts, first {n_lent} of them to {way.size} tokens"
        if not self._has_lent:
            self._notes.append(note)
        self._has_lent = True
        return way

    def take_back(self) -> None:
        """Take back what slots have lent, after a prompt. Do not call it while the session runs."""
        if self._slots is not None and self._slots.are_lent:
            self._slots.take_back(self.small)
            self._planned = self._context.graph_tokens

    def _others(self, n_pending: int, first: Way) -> list[Way]:
        """Return the further ways that are possible: the other two, and larger and larger streamed graphs."""
        if not self._streams.tokens or self._streams.share >= 1:
            return []
        others, least = [], self._streams.tokens
        if not self._streams.is_fixed:
            least = StreamBatch.LEAST
            if first.size >= least:
                others.append(replace(first, streams=not first.streams))
                if self.times.known and n_pending <= _DIVIDED * self.small:
                    others.append(Way(True, first.size, divides=True))
        if n_pending > self.small:
            most = min(self._that_fits(), self._allowed())
            sizes = [min(most, self.small << i) for i in range(1, most.bit_length())]
            graphs = sorted({ceil(n_pending / ceil(n_pending / size)) for size in sizes})
            others += [Way(True, size) for size in graphs if size > self.small and size > least]
        return others

    def _time(self, way: Way, n_pending: int) -> float:
        """Return the seconds per token of a way: as measured, or guessed in proportion to the other way's."""
        middle, copy_s = n_pending / 2, self._streams.graph_s
        if (time := self.times.per_token(way, middle, copy_s)) is not None:
            return time
        other = Way(not way.streams, min(way.size, self.small))
        known = self.times.per_token(other, middle, copy_s)
        guess, of_other = self._guess(way), self._guess(other)
        return known * guess / of_other if known is not None and of_other > 0 else guess

    def _guess(self, way: Way) -> float:
        """Return the seconds per token by the costs.

        A device that computes on the host's cores needs the CPU's time behind the copies. A GPU is expected
        to compute while it copies.
        """
        if not way.streams:
            return self._streams.split_s(way.size, self._streams.share) / way.size
        if way.divides:
            sides = [self._guess(Way(streams, way.size)) for streams in (False, True)]
            return sides[0] * sides[1] / sum(sides) if all(sides) else 0.0
        computes = self._streams.split_s(self.small, 0.0) / self.small if self._shares_cores else 0.0
        return self._streams.graph_s / way.size + computes

    @property
    def graph_s(self) -> float:
        """The least seconds of a large graph: those in which its experts come to the device."""
        return self._streams.graph_s

    def _allowed(self) -> int:
        """Return the tokens of the largest graph that may be tried, whatever the memory."""
        return (
            min(self._most, _GROWTH * max(self.small, self.times.largest)) if self.times.known else self._most
        )

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

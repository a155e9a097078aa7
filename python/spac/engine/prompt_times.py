"""The measured times of a prompt's graphs, by which their size is chosen.

A graph is streamed, split or divided, and has g tokens behind p others. Its time per token is

    T(g, p) / g = u(g) + b · (p + g / 2)

b is the slope of attention, which all graphs share, so a choice compares u. Sizes are put together by powers
of two. The time of such a class at a position is the median of its measurements nearest to the position,
moved there by b. Between streamed classes, and beyond those that were measured, u(g) = c / g + a: c is what
does not depend on the number of tokens, the experts' way over the link above all. Where computing takes
longer than the copies, c is small, and larger graphs gain nothing. A split or divided class that was not
measured has the u of the class next to it, which is a rough guess: small graphs may find cold caches.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import islice
from math import log2
from statistics import median

import numpy as np

from spac.machine.arrays import Float64Array

_KEPT = 16  # latest measurements of a size
_NEAR = 5  # of them, those that tell the time at a position
Kind = tuple[bool, bool]
"""A way without the size: `Way.streams` and `Way.divides`."""
Key = tuple[Kind, int]
"""A kind, and the number of bits of the sizes that are measured together."""


@dataclass(frozen=True, slots=True)
class Way:
    """A way to evaluate a piece of a prompt."""

    streams: bool
    """True if the experts come to the device."""
    size: int
    """The tokens of a graph."""
    divides: bool = False
    """True if only some of these experts come to the device, and the CPU computes the others."""

    @property
    def kind(self) -> Kind:
        """The way without the size."""
        return self.streams, self.divides

    @property
    def key(self) -> Key:
        """The key of the sizes that are measured together."""
        return self.kind, round(log2(self.size))


class PromptTimes:
    """Learns the times of graphs by way and size."""

    def __init__(self) -> None:
        """Start without measurements."""
        self._samples: dict[Key, deque[tuple[int, float, float]]] = {}

    def forget(self) -> None:
        """Forget all times, because the slots have changed."""
        self._samples.clear()

    def state(self) -> Float64Array:
        """Return the latest times of each way and size, float64 [n, 5], for the next run.

        A row has `Way.streams`, `Way.divides`, `Way.size`, the position of the middle of the piece, and the
        seconds per token. The oldest rows come first.
        """
        rows = [
            (*kind, *sample)
            for (kind, _), samples in self._samples.items()
            for sample in reversed(list(islice(samples, _NEAR)))
        ]
        return np.array(rows, np.float64).reshape(-1, 5)

    def restore(self, state: Float64Array) -> None:
        """Continue from the result of `state`, or raise ValueError if it is none."""
        if state.ndim != 2 or state.shape[1] != 5 or not np.isfinite(state).all() or (state < 0).any():
            raise ValueError("no times of prompts")
        if (state[:, 2] < 1).any() or (state[:, 4] == 0).any():
            raise ValueError("no times of prompts")
        self.forget()
        for streams, divides, size, middle, seconds in state.tolist():
            way = Way(bool(streams), int(size), bool(divides))
            self._add(way, middle, seconds)

    def observe(self, way: Way, n_tokens: int, n_past: int, seconds: float) -> None:
        """Learn from a piece of `n_tokens` tokens behind `n_past` others, evaluated in this way."""
        self._add(way, n_past + n_tokens / 2, seconds / n_tokens)

    def _add(self, way: Way, middle: float, per_token_s: float) -> None:
        found = self._samples.setdefault(way.key, deque(maxlen=_KEPT))
        found.appendleft((way.size, middle, per_token_s))

    @property
    def known(self) -> bool:
        """True if anything was measured."""
        return bool(self._samples)

    def count(self, way: Way) -> int:
        """Return the number of measurements of this way, of which the latest are kept."""
        return len(self._samples.get(way.key, ()))

    @property
    def largest(self) -> int:
        """The largest streamed size that was measured, as a power of two; 0 if there is none."""
        return max((2**bits for kind, bits in self._samples if kind == (True, False)), default=0)

    def per_token(self, way: Way, middle: float, copy_s: float) -> float | None:
        """Return the seconds per token around position `middle`; None if no time of this way tells.

        `copy_s` is a guess of c, which is used while only one streamed size was measured.
        """
        slope = self._slope()
        known = [bits for kind, bits in self._samples if kind == way.kind]
        near = sorted(known, key=lambda bits: abs(bits - log2(way.size)))[:2]
        if not near:
            return None
        (x, u), *more = [self._point((way.kind, bits), middle, slope) for bits in near]
        if way.kind == (True, False):
            c = (u - more[0][1]) / (x - more[0][0]) if more else copy_s
            u += min(max(0.0, c), max(0.0, u - slope * middle) / x) * (1 / way.size - x)
        return u

    def _point(self, key: Key, middle: float, slope: float) -> tuple[float, float]:
        """Return the mean of 1 / g and the seconds per token around `middle` for the pieces of a key."""
        samples = sorted(self._samples[key], key=lambda each: abs(each[1] - middle))[:_NEAR]
        u = median(time + slope * (middle - x) for _, x, time in samples)
        return sum(1 / size for size, _, _ in samples) / len(samples), u

    def _slope(self) -> float:
        """Return b, the common slope of all sizes' times by least squares; 0 while nothing tells."""
        above = below = 0.0
        for samples in self._samples.values():
            n = len(samples)
            x0, y0 = sum(x for _, x, _ in samples) / n, sum(y for _, _, y in samples) / n
            above += sum((x - x0) * (y - y0) for _, x, y in samples)
            below += sum((x - x0) ** 2 for _, x, _ in samples)
        return max(0.0, above / below) if below > 0 else 0.0

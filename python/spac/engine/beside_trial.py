"""The choice by measurement whether the scheduler works beside the steps or between them."""

from __future__ import annotations

import statistics
from collections import defaultdict

WARM = 64
"""The number of steps before the first that counts: caches fill, and costs are learned."""
BLOCK = 8
"""The number of steps in one way, before the other has its turn. The first of them does not count."""
PAIRS = 8
"""The number of blocks of each way."""
GAIN = 0.99
"""The scheduler works beside the steps if these take at most this share of the time."""


class BesideTrial:
    """Lets a scheduler work beside some steps and between others, and then chooses the faster way.

    A thread beside the steps needs a core, which the threads that compute experts may need too. So it depends
    on the machine which way is faster.
    """

    def __init__(self, choice: bool | None = None) -> None:
        """Begin with the scheduler between the steps, or with a `choice` that holds."""
        self.choice = choice
        """True if the scheduler works beside all steps, False if between them; None before that is known."""
        self._n_steps = 0
        self._last: float | None = None  # the time of the end of the step before; None if there was none
        self._spent: dict[int, list[float]] = defaultdict(list)  # seconds of the steps of a size
        self._blocks: list[list[tuple[int, float]]] = []  # sizes and seconds; beside and between in turns

    @property
    def is_beside(self) -> bool:
        """True if the scheduler works beside the next step."""
        if self.choice is not None:
            return self.choice
        return self._n_steps >= WARM and (self._n_steps - WARM) // BLOCK % 2 == 1

    def pause(self) -> None:
        """Leave out the time until the end of the next step, in which a prompt is read or nothing is done."""
        self._last = None

    def observe(self, n_verified: int, now: float) -> None:
        """Take a step of so many tokens that ends at `now` in seconds, and choose in the end.

        Its time is that since the step before. A step after `pause` does not count.
        """
        last, self._last = self._last, now
        if self.choice is not None or last is None:
            return
        seconds = now - last
        at, self._n_steps = self._n_steps - WARM, self._n_steps + 1
        if at < 0 or at % BLOCK == 0:
            if at >= 0:
                self._blocks.append([])
            return
        self._spent[n_verified].append(seconds)
        self._blocks[-1].append((n_verified, seconds))
        if at + 1 == 2 * PAIRS * BLOCK:
            self.choice = self._ratio() <= GAIN
            self._spent.clear()
            self._blocks.clear()

    def _ratio(self) -> float:
        """Return the time beside the steps over that between them: the median over the pairs of blocks.

        Steps of different sizes are compared by their share of the median of their size. A block has the mean
        of its steps, because a thread that lacks a core makes few steps much longer.
        """
        usual = {size: statistics.median(times) for size, times in self._spent.items()}
        shares = [statistics.fmean(t / (usual[n] or 1.0) for n, t in block) for block in self._blocks]
        return statistics.median(
            beside / between for between, beside in zip(shares[::2], shares[1::2], strict=True)
        )

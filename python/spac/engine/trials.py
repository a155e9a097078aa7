"""Choices by measurement: steps in turns, with a mechanism and without it, show if it is worth it here."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable

WARM = 64
"""The number of steps before the first that counts: caches fill, and costs are learned."""
BLOCK = 8
"""The number of steps in a row with the mechanism, or without it. The first of them does not count."""
PAIRS = 8
"""The number of such blocks of each kind."""
GAIN = 0.99
"""A mechanism is kept if steps with it take at most this share of the time."""


class Trial:
    """Switches a mechanism on for some steps and off for others, and then keeps what was faster.

    It begins with the mechanism off.
    """

    def __init__(
        self, choice: bool | None = None, *, switch: Callable[[bool], object] = lambda _on: None
    ) -> None:
        """Take a `choice` that holds, or None for a trial.

        switch: is called with True and False where the mechanism is switched. It may as well be asked for
        (`is_on`).
        """
        self.choice = choice
        """True if the mechanism is on from now on, False if it is off; None before that is known."""
        self._switch, self._was_on = switch, False
        self._n_steps = 0
        self._last: float | None = None  # the time of the end of the step before; None if there was none
        self._spent: dict[int, list[float]] = defaultdict(list)  # seconds of the steps of a size
        self._blocks: list[list[tuple[int, float]]] = []  # sizes and seconds; without and with it in turns
        self._tell()

    @property
    def is_on(self) -> bool:
        """True if the mechanism is on for the next step."""
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
        self._take(n_verified, now)
        self._tell()

    def _tell(self) -> None:
        if self.is_on != self._was_on:
            self._was_on = self.is_on
            self._switch(self._was_on)

    def _take(self, n_verified: int, now: float) -> None:
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
        """Return the time of steps with the mechanism over that without: the median of the pairs of blocks.

        Steps of different sizes are compared by their share of the median of their size. A block has the mean
        of its steps, because a thread that lacks a core makes few steps much longer.
        """
        usual = {size: statistics.median(times) for size, times in self._spent.items()}
        shares = [statistics.fmean(t / (usual[n] or 1.0) for n, t in block) for block in self._blocks]
        return statistics.median(on / off for off, on in zip(shares[::2], shares[1::2], strict=True))


class Trials:
    """Makes trials one after the other, so that none sees the turns of another."""

    def __init__(self, *trials: Trial | None) -> None:
        """Take the trials in their order; None for one that is not made."""
        self._trials = [trial for trial in trials if trial is not None]

    def pause(self) -> None:
        """Leave out the time until the end of the next step."""
        for trial in self._trials:
            trial.pause()

    def observe(self, n_verified: int, now: float) -> None:
        """Show a step (`Trial.observe`) to the first trial that has not chosen yet."""
        for trial in self._trials:
            if trial.choice is None:
                trial.observe(n_verified, now)
                return

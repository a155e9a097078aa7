"""Model the uploads of a model, and the slots that they fill."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from spac import _core
from spac.machine.arrays import Int32Array
from spac.scheduler import Plan

Expert = tuple[int, int]  # layer, index


class Link:
    """A link that follows plans by the mechanism's own bookkeeping, best first, as far as time allows."""

    def __init__(
        self, layers: Sequence[tuple[int, int]], pool_slots: Sequence[int], expert_bytes: int
    ) -> None:
        """Make empty slots. `layers` has (experts, pool) of each layer. All experts have one size."""
        self._table = _core.SlotTable(list(layers), list(pool_slots))
        self._pools = [pool for _, pool in layers]
        self._bytes = float(expert_bytes)
        self.slot_of: Int32Array = np.full((len(layers), max(n for n, _ in layers)), -1, np.int32)
        """int32 [L, N], which changes while copies run."""
        self.uploads = 0
        """The number of complete copies."""
        self._queue: list[tuple[Expert, Expert | None]] = []
        self._copying: Expert | None = None
        self._left = 0.0  # bytes of the copy under way

    @property
    def pending(self) -> float:
        """Return the bytes that are still to come."""
        return self._left + self._bytes * len(self._queue)

    def follow(self, plan: Plan) -> None:
        """Follow this plan from now on. The copy under way is finished."""
        held = self._copying
        if held is not None:  # counts as resident, or the plan would ask for it again
            self._table.acquire(*held)
        actions = self._table.toward(plan.priority, plan.threshold, 0)
        if held is not None:
            self._evict(held)
        queue = [(load, victim) for _, load, victim in reversed(actions)]
        self._queue = [each for each in queue if each[1] is None or each[1] != held]

    def run(self, seconds: float, rate: float) -> None:
        """Copy for `seconds`, at `rate` bytes per second."""
        room = seconds * rate
        while room > 0 and (self._copying is not None or self._queue):
            if self._copying is None:
                self._begin()
            done = min(room, self._left)
            room -= done
            self._left -= done
            if self._left <= 1e-6 and self._copying is not None:
                self.slot_of[self._copying] = self._table.acquire(*self._copying)
                self._copying, self._left = None, 0.0
                self.uploads += 1

    def _begin(self) -> None:
        load, victim = self._queue.pop()
        if victim is not None:
            self._evict(victim)
            self.slot_of[victim] = -1
        self._copying, self._left = load, self._bytes

    def _evict(self, expert: Expert) -> None:
        self._table.release(self._pools[expert[0]], self._table.evict(*expert))

"""Model a link on which some copies overtake the plan's: those of experts that a layer is about to need."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from bench.step_time.link import Expert, Link
from spac.machine.arrays import BoolArray, Int64Array
from spac.scheduler import Plan

_KEPT = np.int64(1) << 40  # priority of an expert that must not be a victim


class UrgentLink(Link):
    """A link that runs urgent copies first, in the order of the requests, then the plan's. The copy under way
    is always finished."""

    def __init__(
        self, layers: Sequence[tuple[int, int]], pool_slots: Sequence[int], expert_bytes: int
    ) -> None:
        super().__init__(layers, pool_slots, expert_bytes)
        self._pool_rows = np.array(self._pools)
        self._priority: Int64Array = np.zeros(self.slot_of.shape, np.int64)
        self._urgent: list[Expert] = []
        self.kept: BoolArray = np.zeros(self.slot_of.shape, np.bool_)
        """bool [L, N]: experts that no urgent copy may evict."""
        self.urgent_uploads = 0
        """The number of urgent copies that began."""

    @property
    def pending(self) -> float:
        return super().pending + self.ahead

    @property
    def ahead(self) -> float:
        """Return the bytes that come before another urgent copy."""
        return self._left + self._bytes * len(self._urgent)

    @property
    def expert_bytes(self) -> float:
        return self._bytes

    def follow(self, plan: Plan) -> None:
        super().follow(plan)
        self._priority = plan.priority.astype(np.int64)

    def urge(self, experts: Iterable[Expert]) -> None:
        """Queue these experts next, behind those that are urgent already."""
        for expert in experts:
            if self.slot_of[expert] < 0 and expert != self._copying and expert not in self._urgent:
                self._urgent.append(expert)

    def relax(self, layer: int, unless: BoolArray | None = None) -> None:
        """Drop this layer's urgent copies that have not begun, except for those marked (bool [N])."""
        self._urgent = [e for e in self._urgent if e[0] != layer or (unless is not None and unless[e[1]])]

    def on_its_way(self, expert: Expert) -> bool:
        """Return True if the expert is resident, being copied, or urgent."""
        return self.slot_of[expert] >= 0 or expert == self._copying or expert in self._urgent

    def run(self, seconds: float, rate: float) -> None:
        room = seconds * rate
        while room > 0 and (self._copying is not None or self._next()):
            done = min(room, self._left)
            room -= done
            self._left -= done
            if self._left <= 1e-6 and self._copying is not None:
                self.slot_of[self._copying] = self._table.acquire(*self._copying)
                self._copying, self._left = None, 0.0
                self.uploads += 1

    def _next(self) -> bool:
        """Begin a copy. Return False when no copy is left to begin."""
        while self._urgent:
            load = self._urgent.pop(0)
            if self.slot_of[load] < 0 and self._make_room(load, None, None):
                self.urgent_uploads += 1
                return True
        while self._queue:
            load, victim = self._queue.pop()
            if self.slot_of[load] < 0 and self._make_room(load, victim, int(self._priority[load])):
                return True
        return False

    def _make_room(self, load: Expert, victim: Expert | None, below: int | None) -> bool:
        """Begin a copy into a slot. Return False if all slots hold experts of priority `below` or more."""
        pool = self._pools[load[0]]
        if self._table.n_free(pool) == 0:
            if victim is None or self.slot_of[victim] < 0:
                victim = self._victim(pool)
            if victim is None or (below is not None and self._priority[victim] >= below):
                return False
            self._evict(victim)
            self.slot_of[victim] = -1
        self._copying, self._left = load, self._bytes
        return True

    def _victim(self, pool: int) -> Expert | None:
        worth = np.where((self.slot_of >= 0) & ~self.kept, self._priority, _KEPT)
        worth[self._pool_rows != pool] = _KEPT
        layer, index = divmod(int(worth.argmin()), worth.shape[1])
        return (layer, index) if worth[layer, index] < _KEPT else None

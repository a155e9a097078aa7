"""The scheduler of Mixtral Offloading (Eliseev and Mazur, arXiv 2312.17238): an LRU cache in every layer.

This follows the released code (dvmazur/mixtral-offloading, src/expert_cache.py). Its speculative loading of
the next layer's experts is in the paper and not in that code, and not here either.
"""

from __future__ import annotations

import numpy as np

from spac.machine.arrays import BoolArray, Int32Array
from spac.scheduler.base import Event, Plan, View, share_slots
from spac.scheduler.lru import LruScheduler, by_place

_MISSED = 1 << 20  # within a step, experts that were missed count as used later


class MixtralOffloadingScheduler(LruScheduler):
    """Keeps the most recently used experts of every layer, and loads a layer's misses as soon as it ran.

    As in the released code, a cache begins with the last experts of its layer. A layer marks its resident
    experts as used in the order of their numbers, then those that it missed. The original loads a missed
    expert before the layer computes it, as `--miss load` does. Otherwise the CPU computes it here, and the
    copy follows.
    """

    name = "mixtral-offloading"
    events = frozenset({Event.START, Event.VERIFY_LAYER, Event.VERIFY_END})
    lookahead = 0

    def __init__(self) -> None:
        super().__init__()
        self._seen: BoolArray = np.zeros(0, np.bool_)  # [L] layers of this step that are recorded

    def on(self, event: Event, view: View) -> Plan | None:
        """Record the uses of one layer at VERIFY_LAYER, and those of the others at VERIFY_END."""
        if event == Event.START:
            return self._start(view)
        rows = np.zeros(view.n_layer, np.bool_)
        if event == Event.VERIFY_LAYER:
            if self._seen[view.layer]:  # the verification before this one was stopped
                self._end()
            rows[view.layer] = self._seen[view.layer] = True
        else:
            rows = ~self._seen
        self._record(view, rows)
        if event == Event.VERIFY_END:
            self._end()
            return self._plan() if view.demand.any() else None
        plan = self._plan()
        return Plan(plan.priority, plan.threshold, rows)

    def _start(self, view: View) -> Plan:
        super().on(Event.START, view)
        self._seen = np.zeros(view.n_layer, np.bool_)
        self._step = 1
        shares = self._shares(view)
        self._by_place = by_place(shares, view.n_expert)
        for row, layer, share in zip(self._used, view.layers, shares, strict=True):
            row[layer.n_expert - share : layer.n_expert] = np.arange(1, share + 1)
        self._sort()
        return self._plan()

    def _shares(self, view: View) -> Int32Array:
        """Return the slots of every layer, int32 [L]."""
        return share_slots(view.layers, view.pool_slots)

    def _end(self) -> None:
        self._seen[:] = False
        self._step += 1

    def _record(self, view: View, rows: BoolArray) -> None:
        used = (view.demand > 0) & rows[:, None]
        order = np.arange(1, view.n_expert + 1) + _MISSED * (view.slot_of < 0)
        np.copyto(self._used, (self._step << 32) + order, where=used)
        self._sort()

"""Define reference schedulers: the set that was used most, and one that knows the future."""

from __future__ import annotations

import numpy as np

from spac.machine.arrays import Int32Array
from spac.scheduler import Event, Plan, Scheduler, View
from spac.scheduler.belady import NEVER, next_use
from spac.scheduler.ewma import best_per_pool

_FEW = 64  # steps ahead that it distinguishes


class Foreseen(Scheduler):
    """A scheduler that keeps what is used soonest, and of that what most tokens use. It is no bound: it
    uploads at any price."""

    name = "foreseen"

    def __init__(self, counts: Int32Array) -> None:
        """Take the demand of the steps that it is asked after, as int32 [T, L, N]."""
        self._counts, self._next = counts, next_use(counts)

    def on(self, event: Event, view: View) -> Plan | None:
        if event == Event.START:
            return Plan.nothing(view.n_layer, view.n_expert)
        following = self._next[view.step]
        ahead = np.minimum(following - view.step, _FEW)
        soon = np.minimum(following, len(self._counts) - 1)
        tokens = np.take_along_axis(self._counts, soon[None], axis=0)[0]
        priority = np.where(following == NEVER, 0, (_FEW - ahead) * 256 + np.minimum(tokens, 255))
        priority = priority.astype(np.int32)
        return Plan(priority, best_per_pool(priority, view))

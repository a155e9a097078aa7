"""A scheduler that keeps each layer's most recently used experts, within the layer's share of the slots."""

from __future__ import annotations

import numpy as np

from spac.machine.arrays import Float64Array, Int32Array, Int64Array
from spac.scheduler.base import Event, Plan, Scheduler, StateArrays, View, share_slots


class LruScheduler(Scheduler):
    """Orders experts by the decode step that used them last.

    Within a step, the expert with more activations counts as more recent, then the one with the lower index.
    Experts that were never used are not fetched.
    """

    name = "lru"
    by_recency = True

    def __init__(self) -> None:
        # step << 32 + activations of the last use; 0 = never used
        self._used: Int64Array = np.zeros((0, 0), np.int64)
        self._share: Int32Array = np.zeros(0, np.int32)
        self._step = 0

    def on(self, event: Event, view: View) -> Plan | None:
        """Record the step's uses at VERIFY_END, and return the plan of the most recently used experts."""
        if event == Event.START:
            self._used = np.zeros((view.n_layer, view.n_expert), np.int64)
            self._share = share_slots(view.layers, view.pool_slots)
            self._step = 0
            return Plan.nothing(view.n_layer, view.n_expert)
        self._step += 1
        used_now = view.demand > 0
        if not used_now.any():
            return None
        np.copyto(self._used, (self._step << 32) + view.demand.astype(np.int64), where=used_now)
        return self._plan()

    def state(self) -> StateArrays:
        """Return the last use of every expert and the number of steps."""
        return {"used": self._used.copy(), "step": np.array(self._step, np.int64)}

    def restore(self, state: StateArrays) -> None:
        """Continue from the result of `state`."""
        self._used, self._step = state["used"].copy(), int(state["step"])

    def _plan(self) -> Plan:
        """Return the plan of the most recently used experts."""
        return best_per_layer(self._used, self._share)


def best_per_layer(score: Int64Array | Float64Array, share: Int32Array) -> Plan:
    """Return the plan of the highest scores of every layer.

    score: [L, N], at least 0; experts with 0 are not wanted. share: int32 [L], the slots of every layer.
    Every wanted expert ranks above every unwanted one. So a load always finds a victim in its own pool.
    """
    n_layer, n_expert = score.shape
    order = np.argsort(-score, axis=1, kind="stable")
    rank = np.empty_like(order)
    np.put_along_axis(rank, order, np.arange(n_expert)[None, :], axis=1)
    priority = np.where(rank < share[:, None], 2 * n_expert - rank, n_expert - rank)
    priority[score == 0] = 0
    return Plan(priority.astype(np.int32), np.full(n_layer, n_expert + 1, np.int32))

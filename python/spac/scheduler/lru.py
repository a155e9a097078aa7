"""A scheduler that keeps each layer's most recently used experts, within the layer's share of the slots."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

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
        self._order = np.zeros(0, np.intp)  # [L * N] flat indices, the most recent of each layer first
        self._by_place: Int32Array = np.zeros((0, 0), np.int32)
        self._step = 0

    def on(self, event: Event, view: View) -> Plan | None:
        """Record the step's uses at VERIFY_END, and return the plan of the most recently used experts."""
        if event == Event.START:
            self._used = np.zeros((view.n_layer, view.n_expert), np.int64)
            self._order = np.arange(self._used.size)
            self._by_place = by_place(share_slots(view.layers, view.pool_slots), view.n_expert)
            self._step = 0
            return Plan.nothing(view.n_layer, view.n_expert)
        self._step += 1
        used_now = np.flatnonzero(view.demand > 0)
        if not used_now.size:
            return None
        self._use(view.demand, used_now)
        return self._plan()

    def state(self) -> StateArrays:
        """Return the last use of every expert and the number of steps."""
        return {"used": self._used.copy(), "step": np.array(self._step, np.int64)}

    def restore(self, state: StateArrays) -> None:
        """Continue from the result of `state`."""
        self._used, self._step = state["used"].copy(), int(state["step"])
        self._sort()

    def _plan(self) -> Plan:
        """Return the plan of the most recently used experts."""
        priority = np.empty_like(self._by_place)
        priority.ravel()[self._order] = self._by_place.ravel()
        return _plan(priority, self._used)

    def _sort(self) -> None:
        """Order the experts anew, after a change of their last uses. A step's uses need no such sort."""
        order = np.argsort(-self._used, axis=1, kind="stable")
        self._order = (order + order.shape[1] * np.arange(len(order))[:, None]).ravel()

    def _use(self, demand: Int32Array, used_now: npt.NDArray[np.intp]) -> None:
        """Put the experts that the step used, by flat index, in front of the others of their layers."""
        counts, layer = demand.ravel()[used_now].astype(np.int64), used_now // demand.shape[1]
        self._used.ravel()[used_now] = (self._step << 32) + counts
        stays = np.ones(demand.size, np.bool_)
        stays[used_now] = False
        rest = self._order[stays[self._order]]
        in_front = np.arange(demand.shape[1]) < np.bincount(layer, minlength=len(demand))[:, None]
        self._order[in_front.ravel()] = used_now[np.lexsort((-counts, layer))]
        self._order[~in_front.ravel()] = rest


def best_per_layer(score: Int64Array | Float64Array, share: Int32Array) -> Plan:
    """Return the plan of the highest scores of every layer.

    score: [L, N], at least 0; experts with 0 are not wanted. share: int32 [L], the slots of every layer.
    Every wanted expert ranks above every unwanted one. So a load always finds a victim in its own pool.
    """
    priority = np.empty(score.shape, np.int32)
    order = np.argsort(-score, axis=1, kind="stable")
    np.put_along_axis(priority, order, by_place(share, score.shape[1]), axis=1)
    return _plan(priority, score)


def by_place(share: Int32Array, n_expert: int) -> Int32Array:
    """Return the priorities of every layer's experts from its first to its last, int32 [L, N]."""
    rank = np.arange(n_expert, dtype=np.int32)
    return np.where(rank < share[:, None], 2 * n_expert - rank, n_expert - rank)


def _plan(priority: Int32Array, score: Int64Array | Float64Array) -> Plan:
    n_layer, n_expert = priority.shape
    priority[score == 0] = 0
    return Plan(priority, np.full(n_layer, n_expert + 1, np.int32))

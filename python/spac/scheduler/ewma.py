"""A scheduler that keeps each pool's most activated experts; recent steps count more."""

from __future__ import annotations

import numpy as np

from spac.machine.arrays import Float64Array
from spac.scheduler.base import Event, Plan, RealArray, Scheduler, StateArrays, View

_DECAY = 0.65  # the factor that a step applies to a score
_ONE = 1 << 16  # priority of one activation per token in every step


class EwmaScheduler(Scheduler):
    """Keeps the experts with the highest scores in each pool.

        score <- decay · score + (1 - decay) · f / (tokens verified)

    The layers of a pool compete: a layer with steady demand gets more slots than one without.
    """

    name = "ewma"

    def __init__(self) -> None:
        self._score: Float64Array = np.zeros((0, 0))

    def on(self, event: Event, view: View) -> Plan | None:
        """Update the scores at VERIFY_END, and return the plan of the highest ones."""
        if event == Event.START:
            self._score = np.zeros((view.n_layer, view.n_expert))
            return Plan.nothing(view.n_layer, view.n_expert)
        if view.n_verified == 0:
            return None
        self._score *= _DECAY
        self._score += view.demand * ((1 - _DECAY) / view.n_verified)
        priority = (self._score * _ONE).astype(np.int32)
        return Plan(priority, best_per_pool(priority, view))

    def state(self) -> StateArrays:
        """Return the scores."""
        return {"score": self._score.copy()}

    def restore(self, state: StateArrays) -> None:
        """Continue from the scores of `state`, clipped to 0 to 1."""
        self._score = np.clip(np.nan_to_num(state["score"]), 0.0, 1.0)


def best_per_pool(priority: RealArray, view: View) -> RealArray:
    """Return thresholds, [L] of the priorities' type, at which every pool wants as many as it has slots.

    No expert of priority 0 or less is wanted. Experts that tie at a threshold are all wanted; the first that
    are loaded stay.
    """
    is_float = priority.dtype.kind == "f"
    kind = priority.dtype if is_float or priority.itemsize == 8 else np.result_type(priority, np.int32)
    least = np.nextafter(kind.type(0), kind.type(1)) if is_float else 1
    threshold = np.full(view.n_layer, least, kind)
    pools = np.array([layer.pool for layer in view.layers], np.int32)
    for pool, n_slots in enumerate(view.pool_slots):
        members = pools == pool
        values = priority[members].ravel()
        if n_slots == 0:
            threshold[members] = np.inf if is_float else np.iinfo(kind).max
        elif n_slots < values.size:
            nth = values.size - int(n_slots)
            threshold[members] = max(least, np.partition(values, nth)[nth])
    return threshold

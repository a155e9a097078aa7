"""The placement of Fiddler (Kamahori et al., arXiv 2402.07033): the most used experts of a profile."""

from __future__ import annotations

import numpy as np

from spac.machine.arrays import Int64Array
from spac.scheduler.base import Event, Plan, Scheduler, StateArrays, View
from spac.scheduler.fixed import StaticScheduler

FIRST = 64
"""The tokens after which the set is chosen for the first time."""


class ProfiledScheduler(Scheduler):
    """Keeps in each pool the experts with the most uses, as Fiddler places them by a profile.

    The set is chosen after `FIRST` tokens, and again each time their number has doubled. Before that, it is
    that of `static`. The counts are part of the state, so a later run begins with the profile of all earlier
    ones.
    """

    name = "profiled"
    lookahead = 0

    def on(self, event: Event, view: View) -> Plan | None:
        """Count the step's uses at VERIFY_END, and return the plan of a new set when it is time for one."""
        if event == Event.START:
            self._counts: Int64Array = np.zeros((view.n_layer, view.n_expert), np.int64)
            self._tokens, self._next = 0, FIRST
            return StaticScheduler().on(Event.START, view)
        self._counts += view.demand
        self._tokens += view.n_verified
        if self._tokens < self._next or not self._counts.any():
            return None
        self._next = 2 * self._tokens
        return self._most_used(view)

    def _most_used(self, view: View) -> Plan:
        wanted = np.zeros(self._counts.shape, np.int32)
        for pool, n_slots in enumerate(view.pool_slots):
            members = view.exists & np.array([[layer.pool == pool] for layer in view.layers])
            places = np.flatnonzero(members)
            best = np.argsort(-self._counts.ravel()[places], kind="stable")[:n_slots]
            wanted.ravel()[places[best]] = 1
        return Plan(wanted, np.ones(view.n_layer, np.int32))

    def state(self) -> StateArrays:
        """Return the uses of every expert and the number of tokens."""
        return {"counts": self._counts.copy(), "tokens": np.array(self._tokens, np.int64)}

    def restore(self, state: StateArrays) -> None:
        """Continue from the result of `state`. The next step chooses the set anew."""
        self._counts, self._tokens = np.maximum(state["counts"], 0), max(0, int(state["tokens"]))
        self._next = min(self._next, max(self._tokens, FIRST))

"""Schedulers that keep a fixed set of experts or none: baselines that tell what choosing is worth."""

from __future__ import annotations

import numpy as np

from spac.scheduler.base import Event, Plan, Scheduler, View, share_slots


class NoneScheduler(Scheduler):
    """Keeps no expert resident. Every expert runs on the CPU."""

    name = "none"
    events = frozenset({Event.START})

    def on(self, event: Event, view: View) -> Plan | None:
        """Return the plan that wants no expert."""
        return Plan.nothing(view.n_layer, view.n_expert)


class StaticScheduler(Scheduler):
    """Keeps the first experts of every layer, as many as the layer's share of the slots."""

    name = "static"
    events = frozenset({Event.START})
    lookahead = 0

    def on(self, event: Event, view: View) -> Plan | None:
        """Return the plan of the fixed set."""
        wanted = np.arange(view.n_expert)[None, :] < share_slots(view.layers, view.pool_slots)[:, None]
        return Plan(wanted.astype(np.int32), np.ones(view.n_layer, np.int32))

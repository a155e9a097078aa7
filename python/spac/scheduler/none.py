"""A scheduler that keeps no expert resident. Every expert runs on the CPU."""

from __future__ import annotations

from spac.scheduler.base import Event, Plan, Scheduler, View


class NoneScheduler(Scheduler):
    """The baseline without slots."""

    name = "none"
    events = frozenset({Event.START})

    def on(self, event: Event, view: View) -> Plan | None:
        """Return the plan that wants no expert."""
        return Plan.nothing(view.n_layer, view.n_expert)

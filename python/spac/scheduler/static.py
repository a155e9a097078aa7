"""A scheduler that loads a fixed set of experts once and keeps it."""

from __future__ import annotations

from typing import Any

import numpy as np

from spac.errors import InputError
from spac.machine.arrays import BoolArray
from spac.scheduler.base import Event, Plan, Scheduler, View, share_slots
from spac.scheduler.options import StaticOptions


class StaticScheduler(Scheduler):
    """Keeps `experts`, pairs (layer, expert).

    By default it keeps the first experts of every layer, as many as the layer's share of the slots.
    """

    name = "static"
    events = frozenset({Event.START})
    lookahead = 0

    def __init__(self, **options: Any) -> None:
        """Set the options, by the names of StaticOptions. Raise InputError for invalid ones."""
        self._experts = StaticOptions(**options).experts

    def on(self, event: Event, view: View) -> Plan | None:
        """Return the plan of the fixed set.

        Raise InputError if the model lacks one of the experts, or if a pool has too few slots for its
        experts.
        """
        wanted = self._default(view) if self._experts is None else self._explicit(view)
        return Plan(wanted.astype(np.int32), np.ones(view.n_layer, np.int32))

    @staticmethod
    def _default(view: View) -> BoolArray:
        shares = share_slots(view.layers, view.pool_slots)
        return np.asarray(np.arange(view.n_expert)[None, :] < shares[:, None])

    def _explicit(self, view: View) -> BoolArray:
        wanted = np.zeros((view.n_layer, view.n_expert), np.bool_)
        for layer, expert in self._experts or ():
            if not (0 <= layer < view.n_layer and 0 <= expert < view.layers[layer].n_expert):
                raise InputError(
                    f"the static set names expert {expert} of layer {layer}, which the model does not have"
                )
            wanted[layer, expert] = True
        for pool, n_slots in enumerate(view.pool_slots):
            members = [i for i, layer in enumerate(view.layers) if layer.pool == pool]
            n_wanted = int(wanted[members].sum())
            if n_wanted > n_slots:
                raise InputError(
                    f"the static set has {n_wanted} experts for the {n_slots} slots of pool {pool}"
                )
        return wanted

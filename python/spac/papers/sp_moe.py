"""The scheduler SP-MoE. The target's routers predict the experts of the tokens that are being drafted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from spac.costs import Costs
from spac.machine.arrays import BoolArray, Int32Array
from spac.scheduler.base import Event, Layer, Plan, View
from spac.scheduler.demand import activations_of
from spac.scheduler.lru import LruScheduler
from spac.scheduler.options import Options

_LATER = 1 << 31  # lead of a use in the verification over a prediction for it: half a step of an LRU's times


def critical_experts(layers: Sequence[Layer], k: int | None) -> Int32Array:
    """Return the paper's k for each layer, int32 [L]: the number of a token's experts that are prefetched.

    k: None for as many experts as a token uses.
    """
    return np.array([min(k or layer.n_used or 1, layer.n_expert) for layer in layers], np.int32)


def cutoff_layer(
    layers: Sequence[Layer], pool_slots: Int32Array, critical: Int32Array, costs: Costs | None
) -> int:
    """Return L, the number of layers whose experts are prefetched.

    L is the largest number that satisfies the bounds of section 3.2:

        sum_{l < L} n_l · t_io <= N · t_comp         prefetched experts load while the draft computes
        sum_{l < L, pool p} n_l <= slots of pool p   and fit into the memory that is left for experts

    n_l = k = `critical`, as in the paper. N · t_comp is the time of all layers of the draft: T_draft of one
    token. Each token brings k experts in every layer, so a draft of any length loads them in its own time.
    Predictions come layer by layer, so copies start while the first token is drafted. Those of the last
    layers run into the verification, which does not wait for them. Without costs only the second bound holds.
    """
    pools = np.array([layer.pool for layer in layers], np.int32)
    fits = np.ones(len(layers), np.bool_)
    for pool in np.unique(pools):
        wanted = np.cumsum(np.where(pools == pool, critical, 0))
        fits &= wanted <= pool_slots[pool]
    if costs is not None:
        upload_s = np.array([costs.experts[pool].upload_s for pool in pools])
        fits &= np.cumsum(critical * upload_s) <= costs.draft_token_s
    return int(np.argmin(fits)) if not fits.all() else len(layers)


@dataclass(frozen=True)
class SpMoeOptions(Options):
    """The options of `sp-moe`."""

    scheduler = "sp-moe"

    cutoff: int | str = "auto"
    """The number of layers whose experts are prefetched. "auto": as many as load while a token is drafted."""
    critical: int | str = "used"
    """k: the experts of a token and layer that are prefetched. "used": as many as the token uses."""

    def __post_init__(self) -> None:
        for name, word, least in (("cutoff", "auto", 0), ("critical", "used", 1)):
            value = getattr(self, name)
            if value != word and (isinstance(value, bool) or not isinstance(value, int) or value < least):
                raise self.refusal(name, f"'{word}' or a number of at least {least}")


class SpMoeScheduler(LruScheduler):
    """Predicts and prefetches experts as SP-MoE does (sections 3.2, 3.3 and 4.4).

    *Predictor* (Algorithm 1): the input of a layer's FFN in the draft is shown to that layer's router in the
    target, in the draft's own graph. The k experts that the router ranks highest are critical. The scheduler
    is asked layer by layer, while the draft computes its later layers.

    *Cutoff layer*: only layers before it are predicted and prefetched; `cutoff_layer` computes it after each
    step.

    *Prefetcher* (Algorithm 2): critical experts that are not resident are wanted above all others, layer by
    layer in the order in which they run. The reconciler is its thread and copies in batches. The least
    recently used experts make room (section 4.4). Each layer has its share of the slots (the paper's fixed
    number of cached experts). A prediction counts as a use. It counts as later the more tokens it covers;
    among equal ones, resident experts come first. A use in the verification counts as later than a
    prediction.

    The paper loads an expert that was missed, and waits for it; `--miss load` does so. Otherwise the CPU
    computes it. After a step
    nothing more is loaded in layers that were predicted, because the next draft will predict them. In the
    other layers the last used experts are loaded, as an LRU does. After a step without a draft, this holds
    for all layers.
    """

    name = "sp-moe"
    option_type = SpMoeOptions
    events = frozenset({Event.START, Event.DRAFT_LAYER, Event.DRAFT_TOKEN, Event.DRAFT_END, Event.VERIFY_END})
    routers = "target"

    def __init__(self, **options: Any) -> None:
        """Set the options, by the names of SpMoeOptions. Raise InputError for invalid ones."""
        super().__init__()
        given = SpMoeOptions(**options)
        self._cutoff = None if isinstance(given.cutoff, str) else given.cutoff
        self._k = None if isinstance(given.critical, str) else given.critical
        self.critical = np.zeros(0, np.int32)
        self._predicted = False  # True once this draft's experts were predicted

    def on(self, event: Event, view: View) -> Plan | None:
        """Prefetch while a draft is made, and record uses at VERIFY_END."""
        if event in (Event.DRAFT_LAYER, Event.DRAFT_TOKEN, Event.DRAFT_END):
            return self._prefetch(view)
        n_predicted = len(self.critical) if self._predicted else 0
        self._predicted = False
        self.critical = self._layers_to_predict(view)
        plan = super().on(event, view)
        if plan is not None:
            plan.threshold[:n_predicted] = plan.priority.max() + 1
        return plan

    def _prefetch(self, view: View) -> Plan | None:
        """Return the plan that loads the critical experts of the draft's tokens (Algorithm 1)."""
        routes = view.draft_routes
        if routes is None or not (routes >= 0).any():
            return None
        self._predicted = True
        count = activations_of(routes, view.n_expert).astype(np.int64)
        time = ((self._step + 1) << 32) - _LATER
        np.copyto(self._used, time + 2 * count + (view.slot_of >= 0), where=count > 0)
        self._sort()
        return self._load(count > 0)

    def _layers_to_predict(self, view: View) -> Int32Array:
        """Return the critical experts of each layer below the cutoff, int32 [n]."""
        critical = critical_experts(view.layers, self._k)
        if self._cutoff is not None:
            return critical[: self._cutoff]
        costs = view.costs.costs if view.costs is not None else None
        return critical[: cutoff_layer(view.layers, view.pool_slots, critical, costs)]

    def _load(self, predicted: BoolArray) -> Plan:
        """Return the plan that loads the predicted experts.

        They have one level, within which the reconciler loads layer by layer as they run. The other experts
        of a predicted layer stay as long as nothing needs their slots.
        """
        plan = self._plan()
        level = 3 * predicted.shape[1]
        priority = np.where(predicted & plan.wanted, level, plan.priority).astype(np.int32)
        covered = np.arange(len(priority)) < len(self.critical)
        return Plan(priority, np.where(covered, level, plan.threshold).astype(np.int32), covered)

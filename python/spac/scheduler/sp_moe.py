"""SP-MoE: while the draft model drafts, the target's routers tell which experts its tokens will want."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from spac.costs import Costs
from spac.errors import InputError
from spac.scheduler.base import BoolArray, Event, IntArray, Layer, Plan, View
from spac.scheduler.lru import LruScheduler

_LATER = 1 << 31  # what a use in the verification is ahead of a prediction for it


def critical_experts(layers: Sequence[Layer], k: int | None) -> IntArray:
    """int32 [L]: the paper's k, experts of a token that are prefetched; None: as many as it uses."""
    return np.array([min(k or layer.n_used or 1, layer.n_expert) for layer in layers], np.int32)


def cutoff_layer(
    layers: Sequence[Layer], pool_slots: IntArray, critical: IntArray, costs: Costs | None
) -> int:
    """L, the number of layers whose experts are prefetched: the most that satisfy what section 3.2 asks for,

        sum_{l < L} n_l · t_io <= N · t_comp         what is prefetched loads while the draft computes
        sum_{l < L, pool p} n_l <= slots of pool p   and has room in the memory that is left for experts

    with n_l = k = `critical`, as in the paper. N · t_comp is the time of all layers of the draft: T_draft of
    one token, for each token brings k experts in every layer, and so a draft of any length loads them in its
    own time. (Predictions come once a token here: loading runs one token behind computing, and the last
    token's copies run into the verification, which does not wait for them.) Without costs only the second
    bound holds.
    """
    pools = np.array([layer.pool for layer in layers], np.int32)
    fits = np.ones(len(layers), np.bool_)
    for pool in np.unique(pools):
        wanted = np.cumsum(np.where(pools == pool, critical, 0))
        fits &= wanted <= pool_slots[pool]
    if costs is not None:
        upload_s = np.array([costs.experts[pool].upload_busy_s for pool in pools])
        fits &= np.cumsum(critical * upload_s) <= costs.draft_token_s
    return int(np.argmin(fits)) if not fits.all() else len(layers)


class SpMoeScheduler(LruScheduler):
    """Expert predictor and prefetcher of SP-MoE (sections 3.2, 3.3 and 4.4).

    *Predictor* (Algorithm 1): what enters a layer's FFN in the draft is shown to that layer's router in the
    target, and the k experts that it likes best are critical. It is asked once per drafted token, for all
    layers: DraftStates says why.

    *Cutoff layer*: only layers before it are predicted and prefetched; `cutoff_layer` computes it.

    *Prefetcher* (Algorithm 2): what is critical and not resident is wanted above all else, layer by layer in
    the order in which they run; the reconciler is its thread, and copies in batches. Room comes from the
    least recently used experts (section 4.4): each layer has its share of the slots (the paper's fixed number
    of cached experts), a prediction counts as a use (the more tokens it is of, the later; of equal ones those
    that are there), and a use in the verification as a later one.

    Where the paper loads an expert that was missed, and waits for it, the CPU computes it here. Behind the
    step nothing more is loaded in layers that were predicted, for the next draft will tell; in the others
    what was used last is, as an LRU does it, and in all of them behind a step without a draft.
    """

    name = "sp-moe"
    events = frozenset({Event.START, Event.DRAFT_TOKEN, Event.DRAFT_END, Event.VERIFY_END})
    wants_draft_states = True

    def __init__(self, cutoff: int | str = "auto", critical: int | str = "used") -> None:
        """cutoff: layers whose experts are prefetched, or "auto". critical: the paper's k, experts of a token
        and layer that are, or "used": as many as the token uses (section 3.2)."""
        super().__init__()
        self._cutoff = _count("cutoff", cutoff, "auto", 0)
        self._k = _count("critical", critical, "used", 1)
        self._critical = np.zeros(0, np.int32)
        self._predicted = np.zeros((0, 0), np.int64)  # tokens of this draft for which an expert is critical
        self._n_layer = self._n_seen = 0  # of this draft: layers that are predicted, tokens that were

    def on(self, event: Event, view: View) -> Plan | None:
        if event in (Event.DRAFT_TOKEN, Event.DRAFT_END):
            if event == Event.DRAFT_TOKEN and view.n_drafted == 1:
                self._n_seen = 0  # the draft before may have been stopped
            return self._prefetch(view)
        if event == Event.START:
            self._critical = critical_experts(view.layers, self._k)
            self._predicted = np.zeros((view.n_layer, view.n_expert), np.int64)
        n_predicted, self._n_seen = self._n_layer if self._n_seen else 0, 0
        plan = super().on(event, view)
        if plan is not None:
            plan.threshold[:n_predicted] = plan.priority.max() + 1
        return plan

    def _prefetch(self, view: View) -> Plan | None:
        """Algorithm 1, for the tokens of the draft that were not there at the last call."""
        states = view.draft_states
        if states is None or view.gates is None or states.shape[1] <= self._n_seen:
            return None
        if self._n_seen == 0:
            self._n_layer = self._layers_to_predict(view)
            self._predicted[:] = 0
        chosen = view.gates.top(states[:, self._n_seen :], self._critical[: self._n_layer])
        self._n_seen = states.shape[1]
        layer, token, place = np.nonzero(chosen >= 0)
        np.add.at(self._predicted, (layer, chosen[layer, token, place]), 1)
        foretold = self._predicted > 0
        time = ((self._step + 1) << 32) - _LATER
        np.copyto(self._used, time + 2 * self._predicted + (view.slot_of >= 0), where=foretold)
        return self._load(foretold) if self._n_layer else None

    def _layers_to_predict(self, view: View) -> int:
        if self._cutoff is not None:
            return min(self._cutoff, view.n_layer)
        costs = view.costs.costs if view.costs is not None else None
        return cutoff_layer(view.layers, view.pool_slots, self._critical, costs)

    def _load(self, foretold: BoolArray) -> Plan:
        """The plan that loads what is foretold: one level, within which the reconciler goes layer by layer as
        they run. The rest of a predicted layer stays as long as nobody needs its slots."""
        plan = self._plan()
        level = 3 * foretold.shape[1]
        priority = np.where(foretold & plan.wanted, level, plan.priority).astype(np.int32)
        predicted = np.arange(len(priority)) < self._n_layer
        return Plan(priority, np.where(predicted, level, plan.threshold).astype(np.int32), predicted)


def _count(name: str, value: int | str, word: str, least: int) -> int | None:
    """None for the word. Raises InputError."""
    if value == word:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        expected = f"'{word}' or a number of at least {least}"
        raise InputError(f"scheduler 'sp-moe': {name} must be {expected}, not {value!r}")
    return value

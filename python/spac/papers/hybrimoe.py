"""The scheduler of HybriMoE (Zhong et al., arXiv 2504.05897): a cache by scores, and a hybrid schedule.

The released code (PKU-SEC-Lab/HybriMoE, ktransformers/operators/experts.py) updates for each expert

    S <- α TopP(s) + (1 - α) S

where TopP(s) is the router's score, or 0 beyond the best P experts. A layer evicts its expert of the lowest
S: minus recent score (MRS). `View` has no router scores, so s is the share of the step's tokens that were
routed to the expert, which is 0 beyond those that were chosen.

A layer's experts are scheduled on both processors. The queue is sorted by tokens: the device takes those with
many, and missing ones of these come over the link. The CPU takes those with few. So not every miss is loaded:
`transferred` finds the split of the queue at which both sides end soonest. As misses of this step are over
when the scheduler is asked, the split is that of the step before.

HybriMoE prefetches for the next three layers by their routers, in the order of what an expert spares. Here
this is the mechanism's look-ahead by three layers.
"""

from __future__ import annotations

import numpy as np

from spac.costs import ExpertCosts
from spac.machine.arrays import BoolArray, Int32Array
from spac.scheduler.base import LEAST, Event, Plan, View, share_slots
from spac.scheduler.ewma import EwmaScheduler
from spac.scheduler.lru import best_per_layer

_ALPHA = 0.5
"""α, the share of the newest step in a score, as in the released code."""


def transferred(tokens: Int32Array, resident: BoolArray, costs: ExpertCosts) -> BoolArray:
    """Return the missing experts of one layer that are loaded, bool [N]; the CPU computes the others.

    tokens: int32 [N], of every expert. The experts with the most tokens are loaded, as many as make the layer
    end soonest:

        max(T_cpu(rest), n T_io + T_gpu(resident and loaded)) is least over n
    """
    missing = np.flatnonzero((tokens > 0) & ~resident)
    missing = missing[np.argsort(-tokens[missing], kind="stable")]
    n_hit, n = np.count_nonzero((tokens > 0) & resident), np.arange(len(missing) + 1)
    pairs = np.append(0, tokens[missing]).cumsum()
    cpu = costs.cpu_layer_s + costs.cpu_expert_s * n[::-1] + costs.cpu_pair_s * (pairs[-1] - pairs)
    cpu[-1] = 0.0  # nothing is left to the CPU
    best = int(np.maximum(cpu, n * costs.upload_s + (n_hit + n) * costs.device_expert_s).argmin())
    loaded = np.zeros(len(tokens), np.bool_)
    loaded[missing[:best]] = True
    return loaded


class HybriMoeScheduler(EwmaScheduler):
    """Keeps in each layer the experts of the highest scores among the resident and the loaded ones."""

    name = "hybrimoe"
    lookahead = 3

    def on(self, event: Event, view: View) -> Plan | None:
        """Update the scores at VERIFY_END, and return the plan of the highest ones."""
        if event == Event.START:
            self._score = np.zeros((view.n_layer, view.n_expert))
            self._share = share_slots(view.layers, view.pool_slots)
            return Plan.nothing(view.n_layer, view.n_expert)
        if view.n_verified == 0 or not view.demand.any():
            return None
        self._score += _ALPHA * (view.demand / view.n_verified - self._score)
        self._score[self._score < LEAST] = 0.0
        resident = view.slot_of >= 0
        return best_per_layer(
            np.where(resident | self._loaded(view, resident), self._score, 0.0), self._share
        )

    def _loaded(self, view: View, resident: BoolArray) -> BoolArray:
        """Return the experts that the schedule loads, bool [L, N]. Without costs, these are all misses."""
        if view.costs is None:
            return np.asarray(view.demand > 0)
        costs = view.costs.costs
        rows = zip(view.demand, resident, view.layers, strict=True)
        return np.stack(
            [transferred(tokens, held, costs.experts[layer.pool]) for tokens, held, layer in rows]
        )

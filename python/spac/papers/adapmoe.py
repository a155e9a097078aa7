"""The cache of AdapMoE (Zhong et al., arXiv 2408.10284): LRU caches whose sizes a dynamic program chooses.

This follows the released code (PKU-SEC-Lab/AdapMoE, src/dp.py and src/linear_cache.py) in its exact mode.
AdapMoE's adaptive gating leaves out experts of small weight. That changes the text, so it is not here.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from spac.machine.arrays import Float64Array, Int32Array
from spac.papers.mixtral_offloading import MixtralOffloadingScheduler
from spac.scheduler.base import View

_ACCURACY = 0.87
"""The share of prefetched experts that are right, from the second layer on.

The released code has a list of measured accuracies of 32 layers of one model. This is its mean without the
first layer.
"""
_EVEN = 1e-9  # weight of a square of slots: of equally good divisions, the most even one is taken


def expected_loads(n_expert: int, n_used: int, accuracy: float) -> Float64Array:
    """Return the experts that a token is expected to load with 0..n_expert slots, float64 [n_expert + 1].

    A token uses n_used of a layer's experts, all equally likely, and m of them have no slot. One of these was
    prefetched, if any is missing and the prediction is right:

        E[m] - accuracy · P(m >= 1)

    For 2 of 8 experts these are the numbers of the released code without adaptive gating.
    """
    slots = np.arange(n_expert + 1)
    all_there = np.prod([np.maximum(slots - i, 0) / (n_expert - i) for i in range(n_used)], axis=0)
    return np.asarray(n_used * (1 - slots / n_expert) - accuracy * (1 - all_there), np.float64)


def divide(loads: Sequence[Float64Array], n_slots: int) -> list[int]:
    """Return the slots of every layer for which the sum of expected loads is least.

    loads: for every layer the loads with 0, 1, … slots. All slots are given out, if the layers have as many
    experts. The dynamic program goes layer by layer over the slots that the layers so far share.
    """
    n_slots = min(n_slots, sum(len(each) - 1 for each in loads))
    best = np.where(np.arange(n_slots + 1) == 0, 0.0, np.inf)
    chosen: list[Int32Array] = []
    for each in loads:
        sums, taken = np.full(n_slots + 1, np.inf), np.zeros(n_slots + 1, np.int32)
        for share, load in enumerate(each[: n_slots + 1]):
            with_share = best[: n_slots + 1 - share] + (load + _EVEN * share * share)
            better = with_share < sums[share:]
            sums[share:][better], taken[share:][better] = with_share[better], share
        best = sums
        chosen.append(taken)
    shares: list[int] = []
    for taken in reversed(chosen):
        shares.append(int(taken[n_slots]))
        n_slots -= shares[-1]
    return shares[::-1]


class AdapMoeScheduler(MixtralOffloadingScheduler):
    """Keeps the most recently used experts of every layer, in as many slots as `divide` gives to the layer.

    Experts of the next layer are prefetched by that layer's router from the present layer's input. This is
    the mechanism's look-ahead by one layer. Nothing foretells the first layer, so its accuracy is 0, and it
    gets more slots.
    """

    name = "adapmoe"
    lookahead = 1

    def _shares(self, view: View) -> Int32Array:
        shares = np.zeros(view.n_layer, np.int32)
        for pool, n_slots in enumerate(view.pool_slots):
            members = [i for i, layer in enumerate(view.layers) if layer.pool == pool]
            layers = [view.layers[i] for i in members]
            loads = [
                expected_loads(layer.n_expert, min(layer.n_used or 1, layer.n_expert), _ACCURACY * (i > 0))
                for i, layer in zip(members, layers, strict=True)
            ]
            shares[members] = divide(loads, int(n_slots))
        return shares

"""The scheduler of MoE-Infinity (Xue et al., arXiv 2401.14361): a text's experts foretold by earlier texts.

Every text has an expert activation matrix (EAM): how often each expert of each layer was used. Matrices of
finished texts are kept. The nearest of them foretells what the present text will use:

    nearest = the record with the largest mean over layers of cos(present row, record's row)
    worth   = (share in the nearest + share in the present text) / 2 · (1 - l / (L + 1))

A share is of a layer's uses. The last factor is the layer's proximity: after a step, layer 0 runs next.
"""

from __future__ import annotations

import numpy as np

from spac.machine.arrays import Float32Array, Int64Array
from spac.scheduler.base import UNIT, Event, Plan, Scheduler, StateArrays, View
from spac.scheduler.ewma import best_per_pool

RECORDS = 100
"""The number of activation matrices of earlier texts that are kept."""


class MoeInfinityScheduler(Scheduler):
    """Keeps the experts of most worth in every pool.

    The similarity, the proximity and the replacement of records (the one that was nearest least often goes)
    are those of the released code (EfficientMoE/MoE-Infinity, moe_infinity/memory). Three things differ:

    - The original predicts after every layer, for the layers above it. Here it is once a step.
    - It orders prefetches by the nearest record, and its paper the cache by the present matrix (its released
      engine evicts the expert with the fewest hits). A plan has one order, so the mean of both is used.
    - It loads a missed expert and waits. Here the CPU computes it, and its share in the text brings it.
    """

    name = "moe-infinity"
    lookahead = 0

    def on(self, event: Event, view: View) -> Plan | None:
        """Count the step's uses at VERIFY_END, and return the plan of the experts that are foretold."""
        if event == Event.START:
            shape = (view.n_layer, view.n_expert)
            self._present: Float32Array = np.zeros(shape, np.float32)
            self._records: Float32Array = np.zeros((RECORDS, *shape), np.float32)
            self._nearest: Int64Array = np.zeros(RECORDS, np.int64)  # how often; 0: no record
            self._text = view.text
            return Plan.nothing(*shape)
        if view.n_verified == 0 or not view.demand.any():
            return None
        if view.text != self._text:
            self._keep_record()
            self._text = view.text
        self._present += view.demand
        share = _shares(self._present)
        known = np.flatnonzero(self._nearest)
        if known.size:
            similar = _similarity(share, self._records[known])
            found = known[int(similar.argmax())]
            self._nearest[found] += 1
            share = (share + self._records[found]) / 2
        proximity = 1 - np.arange(view.n_layer, dtype=np.float32)[:, None] / (view.n_layer + 1)
        priority = (share * proximity * UNIT).astype(np.int32)
        return Plan(priority, best_per_pool(priority, view))

    def _keep_record(self) -> None:
        """Keep the shares of the text that has ended, in the place of the record that helped least."""
        if self._present.any():
            place = int(self._nearest.argmin())
            self._records[place], self._nearest[place] = _shares(self._present), 1
            self._present[:] = 0

    def state(self) -> StateArrays:
        """Return the records, how often each was nearest, and the present text's counts."""
        return {
            "records": self._records.copy(),
            "nearest": self._nearest.copy(),
            "present": self._present.copy(),
        }

    def restore(self, state: StateArrays) -> None:
        """Continue from the result of `state`. What was the present text is kept as a record."""
        self._records = np.clip(np.nan_to_num(state["records"]), 0, 1)
        self._nearest = np.maximum(state["nearest"], 0)
        self._present = np.maximum(np.nan_to_num(state["present"]), 0)
        self._keep_record()


def _shares(counts: Float32Array) -> Float32Array:
    """Return every expert's share of its layer's uses, float32 [L, N]; zeros in a layer without any."""
    total = counts.sum(axis=-1, keepdims=True)
    return np.asarray(counts / np.maximum(total, 1), np.float32)


def _similarity(share: Float32Array, records: Float32Array) -> Float32Array:
    """Return the mean over layers of the rows' cosines, float32 [records]."""
    products = np.einsum("ln,rln->rl", share, records)
    lengths = np.linalg.norm(share, axis=-1) * np.linalg.norm(records, axis=-1)
    return np.asarray((products / np.maximum(lengths, 1e-6)).mean(axis=-1), np.float32)

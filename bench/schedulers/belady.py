"""Upper bounds of hits, computed from recorded demand as if a scheduler knew the future.

Hits count distinct experts per step. A step finds the slots as the end of the step before left them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from spac.machine.arrays import BoolArray, Int32Array

NEVER = np.iinfo(np.int32).max


@dataclass(frozen=True)
class Bound:
    """The result of the optimum."""

    distinct: int  # pairs (layer, expert) that steps want, each once per step
    distinct_hit: int
    uploads: int

    @property
    def hit_rate_distinct(self) -> float:
        """The share of the distinct experts that are hits."""
        return self.distinct_hit / max(1, self.distinct)


def next_use(counts: Int32Array) -> Int32Array:
    """Return the next later step that wants each expert, int32 [T, L, N]; NEVER where no step does."""
    result = np.empty(counts.shape, np.int32)
    later = np.full(counts.shape[1:], NEVER, np.int32)
    for step in range(len(counts) - 1, -1, -1):
        result[step] = later
        later[counts[step] > 0] = step
    return result


def belady(counts: Int32Array, pools: Sequence[int], pool_slots: Sequence[int]) -> Bound:
    """Return the most hits if an expert can enter a slot only at its own use; it does not have to.

    counts: int32 [T, L, N] activations; pools: the pool of every layer; pool_slots: slots of every pool.

    This is Belady's MIN with bypass; misses run on the CPU. A hit is an interval from one use of an expert to
    its next use. At most as many intervals overlap as there are slots. If there are more, the one that ends
    last is given up, which is optimal for intervals of equal weight. A scheduler that fetches experts which
    were *not* just used can exceed this bound in principle; `clairvoyant` bounds that one.
    """
    following = next_use(counts)
    of_layer = np.asarray(pools)
    distinct_hit = uploads = 0
    for pool, n_slots in enumerate(pool_slots):
        members = of_layer == pool
        hit, up = _one_pool(counts[:, members], following[:, members], int(n_slots))
        distinct_hit += hit
        uploads += up
    return Bound(int(np.count_nonzero(counts)), distinct_hit, uploads)


def _one_pool(counts: Int32Array, following: Int32Array, n_slots: int) -> tuple[int, int]:
    flat = counts.reshape(len(counts), -1)
    # The next use, until which an expert is kept; NEVER: it is not kept.
    until = np.full(flat.shape[1], NEVER, np.int32)
    hits = uploads = 0
    for step, ahead in enumerate(following.reshape(flat.shape)):
        used = flat[step] > 0
        kept: BoolArray = until == step
        hits += int(kept.sum())
        until[used] = ahead[used]
        holders = np.flatnonzero(until != NEVER)
        if len(holders) > n_slots:
            order = np.argsort(until[holders], kind="stable")
            until[holders[order[n_slots:]]] = NEVER
        uploads += int((used & ~kept & (until != NEVER)).sum())
    return hits, uploads


def clairvoyant(counts: Int32Array, pools: Sequence[int], pool_slots: Sequence[int]) -> Bound:
    """Return the most hits of all: before each step, every pool holds as much of its demand as fits.

    Arguments are those of `belady`. No link is fast enough for it; `uploads` is the number of uploads that it
    takes. Experts that the step before wanted as well are kept first.
    """
    wanted = counts > 0
    of_layer = np.asarray(pools)
    distinct_hit = uploads = 0
    for pool, n_slots in enumerate(pool_slots):
        flat = wanted[:, of_layer == pool].reshape(len(counts), -1)
        resident = np.zeros(flat.shape[1], np.bool_)
        for now in flat:
            order = np.argsort(~(now & resident), kind="stable")
            chosen = order[now[order]][: int(n_slots)]
            distinct_hit += len(chosen)
            uploads += int(np.count_nonzero(~resident[chosen]))
            stays = np.flatnonzero(resident & ~now)[: int(n_slots) - len(chosen)]
            resident = np.zeros(flat.shape[1], np.bool_)
            resident[chosen] = resident[stays] = True
    return Bound(int(np.count_nonzero(counts)), distinct_hit, uploads)

"""Bounds from recorded demand: what a scheduler could reach that knew the future.

Hits are of distinct experts per step; a step finds the slots as the end of the step before left them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from spac.scheduler.base import BoolArray, IntArray

NEVER = np.iinfo(np.int32).max


@dataclass(frozen=True)
class Bound:
    """What the optimum reaches."""

    distinct: int  # (layer, expert) wanted, each once per step
    distinct_hit: int
    uploads: int

    @property
    def hit_rate_distinct(self) -> float:
        return self.distinct_hit / max(1, self.distinct)


def next_use(counts: IntArray) -> IntArray:
    """int32 [T, L, N]: the first later step that wants the expert again, NEVER where none does."""
    result = np.empty(counts.shape, np.int32)
    later = np.full(counts.shape[1:], NEVER, np.int32)
    for step in range(len(counts) - 1, -1, -1):
        result[step] = later
        later[counts[step] > 0] = step
    return result


def belady(counts: IntArray, pools: Sequence[int], pool_slots: Sequence[int]) -> Bound:
    """The most hits when an expert may enter a slot only at its own use, and need not: misses run on the CPU.

    counts: int32 [T, L, N] activations; pools: the pool of every layer; pool_slots: slots of every pool.
    Belady's MIN with bypass: a hit is an interval from one use of an expert to its next, at most as many may
    overlap as there are slots, and whenever there are more, the one that ends last is given up. That is
    optimal for intervals of equal weight. A scheduler that fetches experts which were *not* just used can
    exceed it in principle: `clairvoyant` bounds that one.
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


def _one_pool(counts: IntArray, following: IntArray, n_slots: int) -> tuple[int, int]:
    flat = counts.reshape(len(counts), -1)
    until = np.full(flat.shape[1], NEVER, np.int32)  # the use that an expert is kept for; NEVER: not kept
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


def clairvoyant(counts: IntArray, pools: Sequence[int], pool_slots: Sequence[int]) -> Bound:
    """The most hits of all: before each step, every pool holds what the step will want, as much as fits.

    Arguments as for `belady`. No link is fast enough for it; `uploads` says how many it would take (experts
    that the step before wanted as well are kept first).
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

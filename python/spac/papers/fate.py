"""The cache of Fate (Fang et al., arXiv 2502.12224): shallow layers first, adaptive replacement elsewhere.

Fate foretells the next layer's experts by that layer's router from the present layer's input, which is the
mechanism's look-ahead by one layer. Such guesses are worst in the first layers, so its cache favours them.
Replacement is ARC (Megiddo and Modha, FAST 2003). This follows the abstract and summaries of the paper; its
code is not public. How many layers it favours is not known to us. Its low-bit transfers change the text and
are left out.
"""

from __future__ import annotations

import numpy as np

from spac.machine.arrays import Int32Array
from spac.scheduler.base import Event, Plan, Scheduler, StateArrays, View, share_slots
from spac.scheduler.lru import best_per_layer

_SHALLOW = 2  # first layers that are kept whole, where the slots allow


class Arc:
    """The ARC cache of one layer: experts used once lately, or more than once, in adaptive proportion."""

    def __init__(self, size: int) -> None:
        """Start empty. size: the number of experts that the cache holds."""
        self.size = size
        self.lists: tuple[dict[int, int], ...] = ({}, {}, {}, {})
        """T1, T2, B1 and B2 of the paper, each with the oldest expert first, and the request of its last use.

        Experts in T1 (used once) and T2 (used again) are resident. B1 and B2 remember those that were.
        """
        self.target = 0
        """p of the paper: the size to which T1 is driven."""
        self.clock = 0
        """The number of requests."""

    def request(self, expert: int) -> None:
        """Take one use of an expert into account (the paper's Figure 4, cases I to IV)."""
        if self.size == 0:
            return
        t1, t2, b1, b2 = self.lists
        again = True
        if expert in t1 or expert in t2:
            (t1 if expert in t1 else t2).pop(expert)
        elif expert in b1:
            self.target = min(self.size, self.target + max(1, len(b2) // len(b1)))
            self._make_room(False)
            del b1[expert]
        elif expert in b2:
            self.target = max(0, self.target - max(1, len(b1) // len(b2)))
            self._make_room(True)
            del b2[expert]
        else:
            again = False
            self._forget()
        self.clock += 1
        (t2 if again else t1)[expert] = self.clock

    def _forget(self) -> None:
        """Make room for an expert that no list has."""
        t1, t2, b1, b2 = self.lists
        known = sum(map(len, self.lists))
        if len(t1) + len(b1) == self.size:
            del (b1 or t1)[next(iter(b1 or t1))]
            if len(t1) + len(t2) == self.size:
                self._make_room(False)
        elif known >= self.size:
            if known == 2 * self.size:
                del b2[next(iter(b2))]
            self._make_room(False)

    def _make_room(self, was_frequent: bool) -> None:
        """Move the oldest expert of T1 to B1, or of T2 to B2 (REPLACE in the paper)."""
        t1, t2, b1, b2 = self.lists
        from_first = t1 and (len(t1) > self.target or (was_frequent and len(t1) == self.target))
        held, remembered = (t1, b1) if from_first else (t2, b2)
        oldest = next(iter(held))
        remembered[oldest] = held.pop(oldest)


def shallow_shares(view: View, shallow: int) -> Int32Array:
    """Return the slots of every layer, int32 [L].

    The first `shallow` layers get slots for all their experts, as long as every later layer of the pool can
    still have as many as a token uses. The other layers share what is left evenly.
    """
    left, shares = view.pool_slots.copy(), np.zeros(view.n_layer, np.int32)
    n_whole = 0
    for i, layer in enumerate(view.layers[:shallow]):
        later = [each for each in view.layers[i + 1 :] if each.pool == layer.pool]
        if left[layer.pool] < layer.n_expert + sum(min(each.n_used or 1, each.n_expert) for each in later):
            break
        shares[i], n_whole = layer.n_expert, i + 1
        left[layer.pool] -= layer.n_expert
    if n_whole < view.n_layer:
        shares[n_whole:] = share_slots(view.layers[n_whole:], left)
    return shares


class FateScheduler(Scheduler):
    """Keeps the first layers whole, and what ARC caches keep in the others.

    The original loads what its guess missed, and waits. Here the CPU computes it, and the copy follows.
    """

    name = "fate"
    lookahead = 1

    def on(self, event: Event, view: View) -> Plan | None:
        """Pass the step's uses to the caches at VERIFY_END, and return the plan of what they hold."""
        if event == Event.START:
            self._sizes = shallow_shares(view, _SHALLOW)
            self._caches = [Arc(int(size)) for size in self._sizes]
            self._whole = (self._sizes == [layer.n_expert for layer in view.layers])[:, None] & view.exists
            return self._plan()
        if not view.demand.any():
            return None
        for layer, expert in np.argwhere((view.demand > 0) & ~self._whole).tolist():
            self._caches[layer].request(expert)
        return self._plan()

    def _plan(self) -> Plan:
        """Return the plan of what the caches hold. The experts that were used last are loaded first."""
        score = self._whole.astype(np.int64)
        for row, cache in zip(score, self._caches, strict=True):
            for held in cache.lists[:2]:
                row[list(held)] = list(held.values())
        return best_per_layer(score, self._sizes)

    def state(self) -> StateArrays:
        """Return the list of every expert (1 to 4: T1, T2, B1, B2), its last request, and the targets."""
        lists, used = np.zeros(self._whole.shape, np.int32), np.zeros(self._whole.shape, np.int64)
        for layer, cache in enumerate(self._caches):
            for number, members in enumerate(cache.lists, start=1):
                lists[layer, list(members)] = number
                used[layer, list(members)] = list(members.values())
        targets = np.array([cache.target for cache in self._caches], np.int32)
        return {"list": lists, "used": used, "target": targets}

    def restore(self, state: StateArrays) -> None:
        """Continue from the result of `state`. Caches of another size begin empty."""
        for layer, cache in enumerate(self._caches):
            found = [np.flatnonzero(state["list"][layer] == number) for number in range(1, 5)]
            t1, t2, b1, _ = map(len, found)
            known = sum(map(len, found))
            if t1 + t2 != min(cache.size, known) or t1 + b1 > cache.size or known > 2 * cache.size:
                continue
            used = np.maximum(state["used"][layer], 1)
            for members, experts in zip(cache.lists, found, strict=True):
                order = experts[np.argsort(used[experts], kind="stable")]
                members.update(zip(order.tolist(), used[order].tolist(), strict=True))
            cache.clock = int(used.max())
            cache.target = int(np.clip(state["target"][layer], 0, cache.size))

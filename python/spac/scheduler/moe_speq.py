"""MoE-SpeQ's Expert Scheduler (Section 3.3): prefetch and evict by what the draft's routers foretell.

The draft is a low-bit copy of the target, so its routers choose nearly what the target's will. Every drafted
token makes known which experts one more token of the coming verification wants, in all layers: the Expert
Lookahead Buffer (3.3.1, `lookahead`). Of expert e it foretells c uses; of a token that is not in it yet, what
is likely is what tokens used lately, the "temporal locality" of 3.3.2:

    h <- d^n h + (1 - d^n) f / n      after a step of n tokens that used e f times
    w  = h + margin, if e is resident; h, if not

so that no copy is made for a gain below the margin. The plan orders all experts of a pool and wants as many
as it has slots; the last of them are what is evicted. In the phases of 3.3.2:

I, II while tokens are drafted, by c + r w, the uses that the verification is expected to have, where r tokens
are still to come (as many as the last draft had). Early on history keeps its slots, "exploiting free cache
hits", against what one token wants; the more is known, the more the buffer decides. Prefetching "a subset
without over-subscribing VRAM or prematurely evicting other potentially useful experts" is that. To leave the
link idle at first, as the paper does, is moot: a copy runs beside the draft and holds up nothing, for what
has not come is computed by the CPU. So is the "uncertainty" of tokens further on: whatever will be accepted,
the target evaluates the same tokens after the same ones as the draft did.

III, at the draft's end: by c, then the experts that are not foretold by w. Within a c the mechanism loads the
layer first that runs next, and what is resident stays. Of the last drafted token nothing is known (the draft
need not evaluate it), nor in a step without a draft: there w is all there is.

*Lookahead-aware eviction.* All tokens of the buffer are verified in one pass: an expert's next use is that
pass, or lies beyond what is known. So Belady's order within the window is that of III: first go those without
a use in it; then, only where the foretold exceed the slots, foretold ones, each as near as the other, those
that fewer tokens want. With foresight of all tokens no order hits more distinct experts.

*Entropy.* The abstract and Section 1 call the policy "entropy-aware", Figure 5b shows the entropy of each
layer's activations, and no equation uses it. Here it acts through h, by which the layers of a pool compete:
where entropy is low a few experts have a high h and are worth keeping without being foretold; where it is
high none is, and the slots serve the lookahead.

Not here: confidence scores (Equation 6; unused in the paper too), parameters and KV cache shared with the
draft (3.4.1: the draft is a GGUF of its own), reordering by expert (3.4.4: ggml's kernels group rows by
expert). The governor (3.2) is `spac.governor`.
"""

from __future__ import annotations

import numpy as np

from spac.errors import InputError
from spac.scheduler.base import Event, IntArray, Plan, Scheduler, StateArrays, View
from spac.scheduler.ewma import best_per_pool
from spac.scheduler.lookahead_buffer import FloatArray, foretold_uses

_ONE = 1 << 20  # priority of one use
_FORETOLD = 1 << 22  # at a draft's end, of one that no token is foretold to use; each that is adds one
_LEAST = 1e-12  # of h; below it is 0: no denormal numbers


class MoeSpeqScheduler(Scheduler):
    """Foretold experts first, then those used most; the draft must have the target's layers and experts."""

    name = "moe-speq"
    events = frozenset({Event.START, Event.DRAFT_TOKEN, Event.DRAFT_END, Event.VERIFY_END})
    wants_draft_routes = True

    def __init__(self, decay: float = 0.9, margin: float = 0.05) -> None:
        """decay: d, what a token leaves of h; margin: in uses per token. Both 0 to less than 1, else
        InputError.
        """
        for name, value in (("decay", decay), ("margin", margin)):
            if not 0 <= value < 1:
                raise InputError(f"{name} must be at least 0 and below 1, not {value:g}")
        self._decay, self._margin = decay, margin
        self._use: FloatArray = np.zeros((0, 0))
        self._last_draft = 0

    @property
    def use(self) -> FloatArray:
        """float64 [L, N]: h, uses per token of late."""
        return self._use

    def on(self, event: Event, view: View) -> Plan | None:
        if event == Event.START:
            self._use = np.zeros((view.n_layer, view.n_expert))
            self._last_draft = 0
            return Plan.nothing(view.n_layer, view.n_expert)
        if event == Event.VERIFY_END:
            if view.n_verified == 0 or not view.demand.any():
                return None
            self._observe(view)
            priority = _ones(self._worth(view))
        elif view.draft_routes is None or not view.draft_routes.size:
            return None  # nothing is foretold: what the last verification left in force holds
        else:
            priority = self._ahead(event, view, view.draft_routes)
        return Plan(priority, best_per_pool(priority, view))

    def _observe(self, view: View) -> None:
        kept = self._decay**view.n_verified
        self._use *= kept
        self._use += view.demand * ((1 - kept) / view.n_verified)
        self._use[self._use < _LEAST] = 0.0
        self._last_draft = view.n_drafted

    def _worth(self, view: View) -> FloatArray:
        """float64 [L, N]: w."""
        return np.asarray(self._use + self._margin * (view.slot_of >= 0))

    def _ahead(self, event: Event, view: View, routes: IntArray) -> IntArray:
        """int32 [L, N]: priorities by what is foretold."""
        uses, worth = foretold_uses(routes, view.n_expert), self._worth(view)
        if event == Event.DRAFT_TOKEN:
            return _ones(uses + max(1, self._last_draft + 1 - routes.shape[1]) * worth)
        return np.where(uses > 0, _FORETOLD + uses, _ones(worth))

    def state(self) -> StateArrays:
        return {"use": self._use.copy(), "last_draft": np.array(self._last_draft, np.int64)}

    def restore(self, state: StateArrays) -> None:
        self._use = np.clip(np.nan_to_num(state["use"]), 0.0, 1.0)
        self._last_draft = int(np.clip(state["last_draft"], 0, 1 << 8))


def _ones(uses: FloatArray) -> IntArray:
    """int32: uses as priorities."""
    priority: IntArray = np.rint(uses * _ONE).astype(np.int32)
    return priority

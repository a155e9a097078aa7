"""MoE-SpeQ's Expert Scheduler (Section 3.3), which prefetches and evicts by what the draft's routers predict.

The draft is a low-bit copy of the target, so its routers choose nearly the same experts as the target's.
Every drafted token shows which experts one more token of the coming verification wants, in all layers. The
Expert Lookahead Buffer (3.3.1, `View.draft_routes`) holds these predictions. It predicts c uses of expert e.
Tokens that are not in it yet are likely to use the experts that tokens used lately, the "temporal locality"
of 3.3.2:

    h <- 0.9^n h + (1 - 0.9^n) f / n      after a step of n tokens that used e f times
    w  = h + 0.05, if e is resident; h, if not

The margin prevents copies for a smaller gain. The plan orders all experts of a pool and wants as many as the
pool has slots. The last ones in this order are evicted. The phases of 3.3.2 are:

Phases I and II, while tokens are drafted: the order is c + r w, the expected uses in the verification. r is
the number of tokens still to come; the last draft's length is the estimate. Early on, history keeps its slots
against the wishes of one token, "exploiting free cache hits". Later the buffer decides more. This is how the
scheduler prefetches "a subset without over-subscribing VRAM or prematurely evicting other potentially useful
experts". The paper leaves the link idle at first. That has no use here: a copy runs beside the draft and
delays nothing, because the CPU computes the experts that have not arrived. The "uncertainty" of later tokens
has no use either: the target evaluates the tokens that the draft evaluated, whatever is accepted.

*Confidence* (Equation 6). The paper's implementation hardly uses it, and this does not. On the bundled
target, predictions that count as often as earlier ones of their confidence came true changed hits by 0.2
points at most (bench/results/moe-speq-elb.txt).

Phase III, at the draft's end: the order is c in quarters, then w for what is not predicted. Among experts of
equal c, the mechanism loads the layer first that runs next, and resident experts stay. Nothing is known of
the last drafted token, because the draft need not evaluate it. In a step without a draft, only w is known.

*Lookahead-aware eviction.* One pass verifies all tokens of the buffer. So an expert's next use is that pass,
or lies beyond the known future. Belady's order within this window is the order of phase III: experts without
a use in the window go first. Predicted experts go only if there are more of them than slots. Their next uses
are equally near, so those that fewer tokens want go first. With foresight of all tokens, no order hits more
distinct experts.

*Entropy.* The abstract and Section 1 call the policy "entropy-aware", Figure 5b shows the entropy of each
layer's activations, and no equation uses it. Here entropy acts through h, by which the layers of a pool
compete. Where entropy is low, a few experts have a high h and are worth keeping without a prediction. Where
it is high, no expert has a high h, and the slots serve the lookahead.

The draft that shares parameters and KV cache (3.4.1, 3.4.2) is `--draft-type self`. A draft of its own file
serves as well. Reordering by expert (3.4.4) is left to ggml's kernels: on the CPU, and on CUDA for more than
8 tokens (docs/internals/papers.md). The governor (3.2) is `spac.governor`. It gets the misses of the
predicted window (`window_misses`), the paper's E_new.
"""

from __future__ import annotations

import numpy as np

from spac.machine.arrays import BoolArray, Float64Array, Int32Array
from spac.scheduler.base import LEAST, UNIT, Event, Plan, Scheduler, StateArrays, View
from spac.scheduler.demand import activations_of
from spac.scheduler.ewma import best_per_pool

_PREDICTED = 4 * UNIT  # priority of predicted experts at a draft's end, above any w; each use adds _STEPS
_STEPS = 4  # levels of an expected use; within a level, residents stay and earlier layers are loaded first
_DECAY = 0.9  # the part of h that a token leaves
_MARGIN = 0.05  # the gain in uses per token that is worth a copy


class MoeSpeqScheduler(Scheduler):
    """Keeps predicted experts first, then the most used ones.

    The draft must have the target's layers and experts.
    """

    name = "moe-speq"
    events = frozenset({Event.START, Event.DRAFT_TOKEN, Event.DRAFT_END, Event.VERIFY_END})
    routers = "draft"

    def __init__(self) -> None:
        self._use: Float64Array = np.zeros((0, 0))
        self._last_draft = 0

    def on(self, event: Event, view: View) -> Plan | None:
        """Return the plan by history at VERIFY_END, and by predictions while a draft is made.

        Return None if there is nothing to learn or no prediction.
        """
        if event == Event.START:
            self._use = np.zeros((view.n_layer, view.n_expert))
            self._last_draft = 0
            self.window_misses = None
            return Plan.nothing(view.n_layer, view.n_expert)
        if event == Event.VERIFY_END:
            if view.n_verified == 0 or not view.demand.any():
                return None
            self._observe(view)
            priority = _ones(self._worth(view))
        else:
            self.window_misses = None
            if view.draft_routes is None or not view.draft_routes.size:
                return None  # nothing is predicted: the plan of the last verification holds
            if event == Event.DRAFT_END:
                self.window_misses = window_misses(view.draft_routes, view.slot_of >= 0)
            priority = self._ahead(event, view, view.draft_routes)
        return Plan(priority, best_per_pool(priority, view))

    def _observe(self, view: View) -> None:
        kept = _DECAY**view.n_verified
        self._use *= kept
        self._use += view.demand * ((1 - kept) / view.n_verified)
        self._use[self._use < LEAST] = 0.0
        self._last_draft = view.n_drafted

    def _worth(self, view: View) -> Float64Array:
        """Return w, float64 [L, N]."""
        return np.asarray(self._use + _MARGIN * (view.slot_of >= 0))

    def _ahead(self, event: Event, view: View, predicted: Int32Array) -> Int32Array:
        """Return priorities by predicted uses, int32 [L, N]."""
        uses, worth = activations_of(predicted, view.n_expert), self._worth(view)
        if event == Event.DRAFT_TOKEN:
            return _ones(uses + max(1, self._last_draft + 1 - predicted.shape[1]) * worth)
        return np.where(uses > 0, _PREDICTED + _STEPS * uses, _ones(worth)).astype(np.int32)

    def state(self) -> StateArrays:
        """Return h, and the length of the last draft."""
        return {"use": self._use.copy(), "last_draft": np.array(self._last_draft, np.int64)}

    def restore(self, state: StateArrays) -> None:
        """Continue from the result of `state`; values are clipped to valid ranges."""
        self._use = np.clip(np.nan_to_num(state["use"]), 0.0, 1.0)
        self._last_draft = int(np.clip(state["last_draft"], 0, 1 << 8))


def _ones(uses: Float64Array) -> Int32Array:
    """Return uses as priorities, int32."""
    priority: Int32Array = np.rint(uses * UNIT).astype(np.int32)
    return priority


def window_misses(routes: Int32Array, resident: BoolArray) -> Float64Array:
    """Return the distinct experts of the first 1 … T tokens that are not resident, float64 [T].

    routes: int32 [L, T, U], -1 where there is no expert. resident: bool [L, N].
    """
    n_layer, n_token, _ = routes.shape
    first = np.full((n_layer, resident.shape[1] + 1), n_token)  # the last column takes what is no expert
    layer = np.arange(n_layer)[:, None]
    for token in range(n_token - 1, -1, -1):
        first[layer, routes[:, token]] = token
    absent = first[:, :-1][~resident]
    return np.bincount(absent[absent < n_token], minlength=n_token).cumsum().astype(np.float64)

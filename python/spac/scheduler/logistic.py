"""A scheduler that learns to predict which experts the next step uses.

The predictor is an online logistic regression, one for all experts of a model. After a step of n tokens,
whose last r were drafted and rejected, expert e has the features x_e:

    count     √(f / n), where f of the n tokens were routed to it
    recent    0.9^(tokens since the last step that used it)
    near      decayed mean of `count`; a token leaves 0.95 of it
    far       decayed mean of `count`; a token leaves 0.99 of it
    position  i / n, where token i of 1..n was the last one routed to it; 0 without one
    rejected  1 if that was a rejected token (i > n - r)
    popular   log odds of its long-run share of the steps
    last, before_last, fourth_last, eighth_last
              the lift over that share after the last accepted token's experts in these layers

The next step uses the expert with the probability p_e = 1 / (1 + exp(-(w · x_e + b))). When that step is
known, y_e = 1 for the experts that it used. The gradient of the mean log loss is g = Σ_e (p_e - y_e) (x_e, 1)
/ E. It moves the weights as Adagrad with forgetting does:

    G <- 0.98 G + g²;      (w, b) <- (w, b) - η g / √G,   η = 0.1

So the weights never freeze. They follow a change of regime within some dozens of steps.

All terms are per token, so steps may differ in length, down to decoding without speculation.

`position` and `rejected` hold what counts hide. Rejected tokens stood at the positions that the next step
verifies. Often these guesses were near enough to be routed alike. Among the accepted tokens, the late ones
show more than the early ones. Both features are 0 where routes are not known, for example in demand that was
recorded without routes.

The lifts are what the last token says about the next one, and most of the prediction where a step has one
token. The last layers of a token have settled what the next token is. So their experts tell which experts all
layers will want. For a source layer s and each of its experts a, a table keeps the share T_s[a, l, b] of the
steps after a token with expert a that used expert b of layer l. An older step counts less: every step leaves
`KEPT` of the counts n. The estimate for the next step averages over the experts A of the last accepted token.
Each is shrunk toward the popularity P of expert b as far as it was rarely seen:

    q_s = Σ_{a in A} (n_a · T_s[a] + K · P) / (n_a + K) / |A|

The popularity averages the same steps with the same weights. With another memory, a lift would tell how the
text has changed, and not what the last token means.

    popular = log o(P),   lift_s = log (o(q_s) / o(P)),   o(x) = (x + ε) / (1 - x + ε)

The weights learn from a step before the tables do. So a weight is never fitted to a table that knows the
answer. csrc/core/logistic.cpp and transitions.cpp compute all this; tests compare them with numpy.

Every pool keeps its most probable experts. The scheduler adds a margin to the probability of a resident
expert, so that no copy is made for a smaller gain. The margin follows from what a copy costs (`price`), or is
the option `margin`. Where copies are dear, experts stay for long, and `near` counts beside the probability.
The last tokens of a prompt teach as single tokens do; the rest of it teaches nothing. Layers that are to be
whole (`whole_layers`) stand above all others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from spac.machine.arrays import Float32Array, Int32Array
from spac.scheduler.base import LEAST, Event, Plan, Scheduler, StateArrays, View
from spac.scheduler.options import Options
from spac.scheduler.price import CopyPrice
from spac.scheduler.whole_layers import WholeLayers

if TYPE_CHECKING:
    from spac import _core


START = np.array([0.3, 0.6, 1.2, 0.3, 0.3, 1.0, 0.5, 0.55, 0.55, 0.55, 0.55, -2.0])
"""The first weights of the features in their order above, then the bias."""
RECENT, NEAR, FAR = 0.9, 0.95, 0.99  # memories of about 10, 20 and 100 tokens
RATE = 0.1  # η; hits hardly depend on it between 0.05 and 0.3
_SQUARES = 1e-4  # G at first; it bounds the first moves
SQUARES_KEPT = 0.98  # the part of G that is left after a step; about 50 steps count
MOST = 20.0  # largest absolute value of a weight; p is as good as certain there
BEHIND = (1, 2, 4, 8)
"""The source layers, counted from the end of the model."""
MOST_BYTES = 64 << 20
"""The most bytes of all tables. Models with very many experts have fewer sources. States hold the tables."""
KEPT = 1 - 1 / 200
"""The part of the tables' counts that a step leaves: about as many steps as an answer has tokens count."""
SHRINK = 5.0
"""K, in steps."""
FIRST_STEPS = 20.0
"""The steps that the first guess of the popularity counts for. It is the same for all experts."""
OTHER_TEXTS = 3.0
"""The most steps that a row of the tables counts for when another text begins (bench/results/kept-state.txt).

With all their steps, tables of other texts held the hits of a new one below those of a cold start.
"""
FLOOR = 1e-3
"""ε: shares below it are as good as 0."""


def source_layers(n_layer: int, n_expert: int) -> Int32Array:
    """Return the source layers that have tables, int32 [S], with S from 0 to 4."""
    fit = MOST_BYTES // max(1, 4 * n_expert * n_layer * n_expert)
    return np.array([n_layer - back for back in BEHIND if back <= n_layer][:fit], np.int32)


def untaught(n_layer: int, n_expert: int) -> StateArrays:
    """Return the arrays that the scheduler learns, as they are at first."""
    n_source, shape = len(source_layers(n_layer, n_expert)), (n_layer, n_expert)
    return {
        "weights": START.copy(),  # w, then b
        "squares": np.full(len(START), _SQUARES),  # G
        "features": np.zeros((len(START) - 1, *shape), np.float32),  # x of the last step
        # p for the next step; 0 in the padding, and everywhere before the first step
        "probability": np.zeros(shape, np.float32),
        "table": np.zeros((n_source, n_expert, *shape), np.float32),  # T
        "seen": np.zeros((n_source, n_expert), np.float32),  # n, the decayed counts of steps by expert
        "marked": np.zeros((n_source, n_expert), np.uint8),  # A: 1 for the last accepted token's experts
        "popularity": np.zeros(shape),  # P
        "popularity_steps": np.zeros(1),  # the decayed count of the steps that P averages
    }


_BOUNDS = {
    "weights": (-MOST, MOST), "squares": (LEAST, 1e12), "features": (-MOST, MOST),
    "seen": (0.0, 1 / (1 - KEPT)), "popularity_steps": (0.0, 1 / (1 - KEPT)),
}  # fmt: skip
"""The valid ranges of learned arrays; those of the others are 0 to 1."""


@dataclass(frozen=True)
class LogisticOptions(Options):
    """The options of `logistic`."""

    scheduler = "logistic"

    margin: float | str = "auto"
    """The gain in probability that is worth a copy, 0 to less than 1. "auto": from what copies cost."""
    whole: bool = True
    """True: layers are made whole where that pays (`whole_layers`)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.margin != "auto" and (isinstance(self.margin, bool | str) or not 0 <= self.margin < 1):
            raise self.refusal("margin", "'auto' or a number of at least 0 and below 1")


class LogisticScheduler(Scheduler):
    """Keeps the experts with the highest probabilities in every pool; a margin raises a resident's."""

    name = "logistic"
    option_type = LogisticOptions
    wants_routes = True
    sees_prompts = True

    def __init__(self, **options: Any) -> None:
        """Set the options, by the names of LogisticOptions. Raise InputError for invalid ones."""
        given = LogisticOptions(**options)
        self._price, self._makes_whole = CopyPrice(given.margin), given.whole

    @property
    def margin(self) -> float:
        """The gain in probability that is worth a copy now."""
        return self._price.margin

    @property
    def probability(self) -> Float32Array:
        """The probability that the next step uses an expert, float32 [L, N]."""
        return self._learned["probability"]

    def on(self, event: Event, view: View) -> Plan | None:
        """Learn from the step at VERIFY_END, and return the plan of the most probable experts."""
        if event == Event.START:
            self._learned = untaught(view.n_layer, view.n_expert)
            self._whole, self._last = WholeLayers(view), None
            self._native = self._make_native(view)
            return Plan.nothing(view.n_layer, view.n_expert)
        if view.n_verified == 0 or view.demand.max(initial=0) == 0:
            return None
        if self._makes_whole:
            self._whole.observe(view, self.probability, self._last)
        self._price.observe(view, self.probability)
        plan = self._step(view, max(0, view.n_drafted - view.n_accepted))
        self._last = plan.priority
        return plan

    def _step(self, view: View, n_rejected: int) -> Plan:
        step = (view.demand, view.slot_of, view.routes, view.n_verified, n_rejected)
        return Plan(*self._native.step(*step, self.margin, self._price.hold))

    def state(self) -> StateArrays:
        """Return copies of the learned arrays."""
        learned = {name: array.copy() for name, array in self._learned.items()} | self._price.state()
        return learned | self._whole.state() if self._makes_whole else learned

    def restore(self, state: StateArrays) -> None:
        """Continue from the result of `state`, clipped to its valid ranges."""
        for name, array in self._learned.items():
            np.clip(np.nan_to_num(state[name]), *_BOUNDS.get(name, (0, 1)), out=array)
        self._price.restore(state)
        if self._makes_whole:
            self._whole.restore(state)
            self._last = None

    def for_new_text(self, state: StateArrays) -> StateArrays:
        """Return a state without the counts of its text, and with tables that a new text soon outweighs."""
        of_text = {name: np.zeros_like(state[name]) for name in ("features", "probability", "marked")}
        seen, steps = state["seen"], state["popularity_steps"]
        return {
            **state, **of_text, "seen": np.minimum(seen, seen.dtype.type(OTHER_TEXTS)),
            "popularity_steps": np.minimum(steps, FIRST_STEPS),
        }  # fmt: skip

    def _make_native(self, view: View) -> _core.Logistic:
        """Return the C++ implementation of a step (csrc/core/logistic.h) on the same arrays."""
        from spac import _core  # imported here because options are read before the library is loaded

        arrays = {
            **self._learned,
            "source": source_layers(view.n_layer, view.n_expert),
            "exists": view.exists.view(np.uint8),
            "pool": np.array([layer.pool for layer in view.layers], np.int32),
            "pool_slots": self._whole.slots_left,
            "whole": self._whole.whole,
        }
        return _core.Logistic(
            arrays, RATE, (RECENT, NEAR, FAR), SQUARES_KEPT, LEAST, MOST,
            (KEPT, SHRINK, FIRST_STEPS, FLOOR),
        )  # fmt: skip

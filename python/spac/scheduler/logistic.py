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
              the lift over that share after the last accepted token's experts in these layers (`transitions`)

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
token. Their tables learn from a step after the weights have.

Every pool keeps its most probable experts. The scheduler adds a margin to the probability of a resident
expert, so that no copy is made for a smaller gain. The margin follows from what a copy costs (`price`), or is
the option `margin`. Where copies are dear, experts stay for long, and `near` counts beside the probability.
The last tokens of a prompt teach as single tokens do; the rest of it teaches nothing. Layers that are to be
whole (`whole_layers`) stand above all others.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from spac.machine.arrays import BoolArray, Float64Array, Int32Array
from spac.scheduler.base import LEAST, UNIT, Event, Plan, Scheduler, StateArrays, View
from spac.scheduler.ewma import best_per_pool
from spac.scheduler.options import LogisticOptions
from spac.scheduler.price import CopyPrice
from spac.scheduler.transitions import FIRST_STEPS, FLOOR, KEPT, OTHER_TEXTS, SHRINK, Transitions
from spac.scheduler.whole_layers import WholeLayers

if TYPE_CHECKING:
    from spac import _core


FEATURES = ("count", "recent", "near", "far", "position", "rejected", "popular", "last", "before_last",
            "fourth_last", "eighth_last")  # fmt: skip
_START = np.array([0.3, 0.6, 1.2, 0.3, 0.3, 1.0, 0.5, 0.55, 0.55, 0.55, 0.55, -2.0])  # weights, bias
_COUNTED = 6  # features before those of `transitions`
_RECENT, _NEAR, _FAR = 0.9, 0.95, 0.99  # memories of about 10, 20 and 100 tokens
_RATE = 0.1  # η; hits hardly depend on it between 0.05 and 0.3
_SQUARES = 1e-4  # G at first; it bounds the first moves
_SQUARES_KEPT = 0.98  # the part of G that is left after a step; about 50 steps count
_MOST = 20.0  # largest absolute value of a weight; p is as good as certain there
_ABOVE = 2 * UNIT  # addition to the priority of experts of whole layers; others are below (1 + margin) units


class Predictor:
    """The regression. It turns observations of a step into probabilities for the next one."""

    def __init__(self, exists: BoolArray) -> None:
        """Start with the initial weights. exists: bool [L, N], False for padding, which teaches nothing."""
        self._exists = exists
        self._real = max(1, int(exists.sum()))
        self.weights = _START.copy()
        """The weights w in the order of FEATURES, then b; float64 [12]."""
        self.squares: Float64Array = np.full(len(_START), _SQUARES)
        """G, float64 [12]."""
        self.features: Float64Array = np.zeros((len(FEATURES), *exists.shape))
        """x of the last step, float64 [11, L, N]."""
        self.probability: Float64Array = np.zeros(exists.shape)
        """p for the next step, float64 [L, N]; 0 in the padding, and everywhere before the first step."""
        self.transitions = Transitions(exists)
        """The tables behind the last five features."""

    @property
    def arrays(self) -> StateArrays:
        """The learned arrays by name, not copied."""
        return {
            "weights": self.weights,
            "squares": self.squares,
            "features": self.features,
            "probability": self.probability,
            **self.transitions.arrays,
        }

    def restore(self, state: StateArrays) -> None:
        """Continue from copies of the same arrays, clipped to their valid ranges."""
        bounds = {
            "weights": (-_MOST, _MOST), "squares": (LEAST, 1e12), "features": (-_MOST, _MOST),
            "seen": (0.0, 1 / (1 - KEPT)), "popularity_steps": (0.0, 1 / (1 - KEPT)),
        }  # fmt: skip
        for name, array in self.arrays.items():
            np.clip(np.nan_to_num(state[name]), *bounds.get(name, (0, 1)), out=array)

    def observe(
        self, demand: Int32Array, n_verified: int, n_rejected: int, routes: Int32Array | None
    ) -> None:
        """Learn from a step, and predict the next one.

        demand: int32 [L, N]. n_verified: the tokens of the step, at least 1; the last n_rejected of them were
        rejected. routes: int32 [L, T, U], see `View.routes`.
        """
        used = demand > 0
        if self.probability.any():
            self._learn(used)
        self.transitions.learn(used)
        count, recent, near, far, position, rejected = self.features[:_COUNTED]
        np.sqrt(demand / n_verified, out=count)
        np.minimum(count, 1.0, out=count)
        recent *= _RECENT**n_verified
        recent[used] = 1.0
        near += (1 - _NEAR**n_verified) * (count - near)
        far += (1 - _FAR**n_verified) * (count - far)
        for faded in (recent, near, far):
            faded[faded < LEAST] = 0.0
        position[:] = rejected[:] = 0.0
        if routes is not None and routes.size:
            _last_position(position, routes)
            np.greater(position, 1 - (n_rejected - 0.5) / routes.shape[1], out=rejected)
        known = routes is not None or n_verified == 1
        self.transitions.mark(demand, routes, n_verified - n_rejected - 1 if known else -1)
        self.transitions.write(self.features[_COUNTED:])
        logit = np.tensordot(self.weights[:-1], self.features, 1) + self.weights[-1]
        np.divide(self._exists, 1 + np.exp(-logit), out=self.probability)

    def _learn(self, used: BoolArray) -> None:
        error = (self.probability - used) * self._exists
        gradient = np.append(np.tensordot(self.features, error, 2), error.sum()) / self._real
        self.squares *= _SQUARES_KEPT
        self.squares += gradient * gradient
        np.maximum(self.squares, LEAST, out=self.squares)  # a feature may stay silent
        self.weights -= _RATE * gradient / np.sqrt(self.squares)
        np.clip(self.weights, -_MOST, _MOST, out=self.weights)


def _last_position(position: Float64Array, routes: Int32Array) -> None:
    """Write the position, from 1/T to 1, of the last of the T tokens routed to each expert."""
    n_token = routes.shape[1]
    for token in range(n_token):
        layer, place = np.nonzero(routes[:, token] >= 0)
        position[layer, routes[layer, token, place]] = (token + 1) / n_token


class LogisticScheduler(Scheduler):
    """Keeps the experts with the highest probabilities in every pool; a margin raises a resident's."""

    name = "logistic"
    wants_routes = True
    sees_prompts = True
    allow_fast: ClassVar[bool] = True
    """False: use numpy throughout, for comparisons."""

    def __init__(self, **options: Any) -> None:
        """Set the options, by the names of LogisticOptions. Raise InputError for invalid ones."""
        given = LogisticOptions(**options)
        self._price, self._makes_whole = CopyPrice(given.margin), given.whole

    @property
    def margin(self) -> float:
        """The gain in probability that is worth a copy now."""
        return self._price.margin

    @property
    def probability(self) -> Float64Array:
        """The probability that the next step uses an expert, float64 [L, N]."""
        return self._predictor.probability

    def on(self, event: Event, view: View) -> Plan | None:
        """Learn from the step at VERIFY_END, and return the plan of the most probable experts."""
        if event == Event.START:
            self._predictor = Predictor(view.exists)
            self._whole, self._last = WholeLayers(view), None
            self._fast = self._make_fast(view) if self.allow_fast else None
            return Plan.nothing(view.n_layer, view.n_expert)
        if view.n_verified == 0 or not view.demand.any():
            return None
        if self._makes_whole:
            self._whole.observe(view, self.probability, self._last)
        self._price.observe(view, self.probability)
        plan = self._step(view, max(0, view.n_drafted - view.n_accepted))
        self._last = plan.priority
        return plan

    def _step(self, view: View, n_rejected: int) -> Plan:
        if self._fast is not None:
            step = (view.demand, view.slot_of, view.routes, view.n_verified, n_rejected)
            return Plan(*self._fast.step(*step, self.margin, self._price.hold))
        self._predictor.observe(view.demand, view.n_verified, n_rejected, view.routes)
        hold, near = self._price.hold, self._predictor.features[FEATURES.index("near")]
        worth = self.probability + hold * near + self.margin * (view.slot_of >= 0)
        priority = np.rint(worth * (1 / (1 + hold)) * UNIT).astype(np.int32)
        whole = self._whole.whole > 0
        others = np.where(whole[:, None], np.int32(-1), priority)
        threshold = best_per_pool(others, replace(view, pool_slots=self._whole.slots_left))
        threshold[whole] = _ABOVE
        priority[whole[:, None] & view.exists] += _ABOVE
        return Plan(priority, threshold)

    def state(self) -> StateArrays:
        """Return copies of the learned arrays."""
        learned = {name: array.copy() for name, array in self._predictor.arrays.items()} | self._price.state()
        return learned | self._whole.state() if self._makes_whole else learned

    def restore(self, state: StateArrays) -> None:
        """Continue from the result of `state`."""
        self._predictor.restore(state)
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

    def _make_fast(self, view: View) -> _core.Logistic:
        """Return the C++ implementation (csrc/core/logistic.h) on the same arrays."""
        arrays: dict[str, npt.NDArray[Any]] = {
            **self._predictor.arrays,
            "source": self._predictor.transitions.source,
            "exists": view.exists.view(np.uint8),
            "pool": np.array([layer.pool for layer in view.layers], np.int32),
            "pool_slots": self._whole.slots_left,
            "whole": self._whole.whole,
        }
        from spac import _core  # imported here because options are read before the library is loaded

        return _core.Logistic(
            arrays, _RATE, (_RECENT, _NEAR, _FAR), _SQUARES_KEPT, LEAST, _MOST,
            (KEPT, SHRINK, FIRST_STEPS, FLOOR),
        )  # fmt: skip

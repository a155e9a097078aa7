"""The step of the learned scheduler in numpy, for comparisons with its C++ (csrc/core/logistic.cpp)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from spac.scheduler import Event, Plan, View
from spac.scheduler.base import LEAST, UNIT
from spac.scheduler.ewma import best_per_pool
from spac.scheduler.logistic import (
    FAR,
    FIRST_STEPS,
    FLOOR,
    KEPT,
    MOST,
    NEAR,
    RATE,
    RECENT,
    SHRINK,
    SQUARES_KEPT,
    LogisticScheduler,
    source_layers,
    untaught,
)

FEATURES = ("count", "recent", "near", "far", "position", "rejected", "popular", "last", "before_last",
            "fourth_last", "eighth_last")  # fmt: skip
COUNTED = 6  # features before those of the tables
ABOVE = 2 * UNIT  # addition to the priority of experts of whole layers


class Transitions:
    """The tables of which experts follow which."""

    def __init__(self, exists: np.ndarray, arrays: dict[str, np.ndarray] | None = None) -> None:
        arrays = untaught(*exists.shape) if arrays is None else arrays
        self._exists, self.source = exists, source_layers(*exists.shape)
        names = ("table", "seen", "marked", "popularity", "popularity_steps")
        self.table, self.seen, self.marked, self.popularity, self.steps = (arrays[name] for name in names)

    def learn(self, used: np.ndarray) -> None:
        """Learn from the step after the last accepted token. used: bool [L, N], the experts that it used."""
        if not self.steps[0]:
            self.popularity[self._exists] = used.sum() / max(1, int(self._exists.sum()))
            self.steps[0] = FIRST_STEPS
        self.steps[0] = KEPT * self.steps[0] + 1
        self.popularity += (used - self.popularity) * (1 / self.steps[0])
        came = used.astype(np.float32)
        self.seen *= np.float32(KEPT)
        self.seen += self.marked
        self.seen[self.seen < LEAST] = 0.0
        for source, expert in np.argwhere(self.marked):
            row = self.table[source, expert]
            row += (came - row) * (np.float32(1) / self.seen[source, expert])

    def mark(self, demand: np.ndarray, routes: np.ndarray | None, token: int) -> None:
        """Note the experts of a token, which the next step follows.

        token: the last accepted one's place in the routes. Without routes, the demand of a step of one token
        tells the same.
        """
        self.marked[:] = 0
        for row, layer in zip(self.marked, self.source, strict=True):
            if routes is not None and 0 <= token < routes.shape[1]:
                chosen = routes[layer, token]
                row[chosen[chosen >= 0]] = 1
            elif routes is None and token == 0:
                row[demand[layer] > 0] = 1

    def write(self, out: np.ndarray) -> None:
        """Write the features of the next step: popular, then the sources' lifts; float64 [5, L, N]."""
        out[:] = 0.0
        one, floor = np.float32(1), np.float32(FLOOR)
        popularity = self.popularity.astype(np.float32)
        odds = (popularity + floor) / (one - popularity + floor)
        out[0] = logarithm(odds)
        shares = self.seen / (self.seen + np.float32(SHRINK))
        for lift, table, share, marked in zip(out[1:], self.table, shares, self.marked, strict=False):
            chosen = np.flatnonzero(marked)
            if not chosen.size:
                continue
            mean, rest = np.zeros(lift.shape, np.float32), np.float32(0)
            for expert in chosen:
                mean += table[expert] * share[expert]
                rest += one - share[expert]
            q = (mean + rest * popularity) * (one / np.float32(chosen.size))
            lift[:] = logarithm((q + floor) / ((one - q + floor) * odds))


def logarithm(x: np.ndarray) -> np.ndarray:
    """Return the natural logarithm of normal x > 0, to 6 digits, by the steps of csrc/core/transitions.cpp.

    x = 2^k m with m from √½ to √2, and log m = 2 artanh((m - 1) / (m + 1)).
    """
    bits = x.view(np.int32)
    k = (bits - np.int32(0x3F3504F3)) >> 23
    m = (bits - k * np.int32(1 << 23)).view(np.float32)
    one = np.float32(1)
    s = (m - one) / (m + one)
    z = s * s
    total = ((z * (one / np.float32(7)) + one / np.float32(5)) * z + one / np.float32(3)) * z + one
    return np.asarray(k.astype(np.float32) * np.float32(0.693147180559945) + np.float32(2) * s * total)


class Reference(LogisticScheduler):
    def on(self, event: Event, view: View) -> Plan | None:
        plan = super().on(event, view)
        if event == Event.START:
            self._transitions = Transitions(view.exists, self._learned)
        return plan

    def _step(self, view: View, n_rejected: int) -> Plan:
        self._observe(view, n_rejected)
        hold, near = self._price.hold, self._learned["features"][FEATURES.index("near")]
        worth = self.probability + hold * near + self.margin * (view.slot_of >= 0)
        priority = np.rint(worth * (1 / (1 + hold)) * UNIT).astype(np.int32)
        whole = self._whole.whole > 0
        others = np.where(whole[:, None], np.int32(-1), priority)
        threshold = best_per_pool(others, replace(view, pool_slots=self._whole.slots_left))
        threshold[whole] = ABOVE
        priority[whole[:, None] & view.exists] += ABOVE
        return Plan(priority, threshold)

    def _observe(self, view: View, n_rejected: int) -> None:
        demand, n_verified, routes = view.demand, view.n_verified, view.routes
        used, features = demand > 0, self._learned["features"]
        if self.probability.any():
            self._learn(used, view.exists)
        self._transitions.learn(used)
        count, recent, near, far, position, rejected = features[:COUNTED]
        np.sqrt(demand / n_verified, out=count)
        np.minimum(count, 1.0, out=count)
        recent *= RECENT**n_verified
        recent[used] = 1.0
        near += (1 - NEAR**n_verified) * (count - near)
        far += (1 - FAR**n_verified) * (count - far)
        for faded in (recent, near, far):
            faded[faded < LEAST] = 0.0
        position[:] = rejected[:] = 0.0
        if routes is not None and routes.size:
            for token in range(routes.shape[1]):
                layer, place = np.nonzero(routes[:, token] >= 0)
                position[layer, routes[layer, token, place]] = (token + 1) / routes.shape[1]
            np.greater(position, 1 - (n_rejected - 0.5) / routes.shape[1], out=rejected)
        known = routes is not None or n_verified == 1
        self._transitions.mark(demand, routes, n_verified - n_rejected - 1 if known else -1)
        self._transitions.write(features[COUNTED:])
        weights = self._learned["weights"]
        logit = np.tensordot(weights[:-1], features, 1) + weights[-1]
        np.divide(view.exists, 1 + np.exp(-logit), out=self.probability)

    def _learn(self, used: np.ndarray, exists: np.ndarray) -> None:
        weights, squares, features = (self._learned[name] for name in ("weights", "squares", "features"))
        error = (self.probability - used) * exists
        gradient = np.append(np.tensordot(features, error, 2), error.sum()) / max(1, int(exists.sum()))
        squares *= SQUARES_KEPT
        squares += gradient * gradient
        np.maximum(squares, LEAST, out=squares)  # a feature may stay silent
        weights -= RATE * gradient / np.sqrt(squares)
        np.clip(weights, -MOST, MOST, out=weights)

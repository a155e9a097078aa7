"""Tables of which experts follow which: a token's late layers foretell the next step.

The last layers of a token have settled what the next token is. So their experts tell which experts all layers
will want. For a source layer s and each of its experts a, a table keeps the share T_s[a, l, b] of the steps
after a token with expert a that used expert b of layer l. An older step counts less: every step leaves
`KEPT` of the counts n. The estimate for the next step averages over the experts A of the last accepted token.
Each is shrunk toward the popularity P of expert b as far as it was rarely seen:

    q_s = Σ_{a in A} (n_a · T_s[a] + K · P) / (n_a + K) / |A|

The popularity averages the same steps with the same weights. With another memory, a lift would tell how the
text has changed, and not what the last token means.

A regression gets the logarithm of the popularity's odds, and for each source the lift over it:

    popular = log o(P),   lift_s = log (o(q_s) / o(P)),   o(x) = (x + ε) / (1 - x + ε)

The caller's weights learn from a step before the tables do. So a weight is never fitted to a table that knows
the answer.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from spac.machine.arrays import BoolArray, Float32Array, Float64Array, Int32Array
from spac.scheduler.base import LEAST

BEHIND = (1, 2, 4, 8)
"""The source layers, counted from the end of the model."""
MOST_BYTES = 64 << 20
"""The most bytes of all tables. Models with very many experts have fewer sources. States hold the tables."""
KEPT = 1 - 1 / 200
"""The part of the counts that a step leaves: about as many steps as an answer has tokens count."""
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


class Transitions:
    """The tables of one model. The arrays are changed in place."""

    def __init__(self, exists: BoolArray) -> None:
        """Start with empty tables. exists: bool [L, N]."""
        n_layer, n_expert = exists.shape
        self._exists = exists
        self._real = max(1, int(exists.sum()))
        fit = MOST_BYTES // max(1, 4 * n_expert * n_layer * n_expert)
        layers = [n_layer - back for back in BEHIND if back <= n_layer][:fit]
        self.source: Int32Array = np.array(layers, np.int32)
        """The source layers, int32 [S], with S from 0 to 4."""
        self.table: Float32Array = np.zeros((len(layers), n_expert, n_layer, n_expert), np.float32)
        """T, float32 [S, N, L, N]."""
        self.seen: Float32Array = np.zeros((len(layers), n_expert), np.float32)
        """n, the decayed counts of steps after each expert, float32 [S, N]."""
        self.marked: npt.NDArray[np.uint8] = np.zeros((len(layers), n_expert), np.uint8)
        """A, the experts of the last accepted token: 1 or 0, uint8 [S, N]."""
        self.popularity: Float64Array = np.zeros(exists.shape)
        """P, float64 [L, N]."""
        self.steps: Float64Array = np.zeros(1)
        """The decayed count of the steps that P averages, float64 [1]."""

    @property
    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """The learned arrays by name, not copied."""
        return {"table": self.table, "seen": self.seen, "marked": self.marked,
                "popularity": self.popularity, "popularity_steps": self.steps}  # fmt: skip

    def learn(self, used: BoolArray) -> None:
        """Learn from the step after the last accepted token. used: bool [L, N], the experts that it used."""
        if not self.steps[0]:
            self.popularity[self._exists] = used.sum() / self._real
            self.steps[0] = FIRST_STEPS
        self.steps[0] = KEPT * self.steps[0] + 1
        self.popularity += (used - self.popularity) / self.steps[0]
        came = used.astype(np.float32)
        self.seen *= np.float32(KEPT)
        self.seen += self.marked
        self.seen[self.seen < LEAST] = 0.0
        for source, expert in np.argwhere(self.marked):
            row = self.table[source, expert]
            row += (came - row) * (np.float32(1) / self.seen[source, expert])

    def mark(self, demand: Int32Array, routes: Int32Array | None, token: int) -> None:
        """Note the experts of a token, which the next step follows.

        demand: int32 [L, N]. routes: int32 [L, T, U], see `View.routes`. token: the last accepted one's place
        in the routes. Without routes, the demand of a step of one token tells the same.
        """
        self.marked[:] = 0
        for row, layer in zip(self.marked, self.source, strict=True):
            if routes is not None and 0 <= token < routes.shape[1]:
                chosen = routes[layer, token]
                row[chosen[chosen >= 0]] = 1
            elif routes is None and token == 0:
                row[demand[layer] > 0] = 1

    def write(self, out: Float64Array) -> None:
        """Write the features of the next step: popular, then the sources' lifts; float64 [5, L, N].

        Features of sources that there are not stay 0, and lifts after an unknown token are 0.
        """
        out[:] = 0.0
        one, floor = np.float32(1), np.float32(FLOOR)
        popularity = self.popularity.astype(np.float32)
        odds = (popularity + floor) / (one - popularity + floor)
        out[0] = _logarithm(odds)
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
            lift[:] = _logarithm((q + floor) / ((one - q + floor) * odds))


def _logarithm(x: Float32Array) -> Float32Array:
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

"""MoE-SpAc's speculative utility estimator (section 3.2, Algorithm 1, Eq. 6), for all experts at once.

Every expert has a utility s in 0..K, 0 for dormant and K for saturated. After each verification, the
estimator takes the change Δ = f_t - f_{t-1} of the expert's activation frequency. It compares Δ with two
boundaries of the expert:

    s <- min(K, s + 1)  if  Δ >= θ_up;      s <- max(0, s - 1)  if  -Δ >= θ_down;      else s stays   (Eq. 6)

The boundary on the side of the change moves toward the change: θ <- (1 - λ) θ + λ |Δ|.

Printed (`moe-spac:paper`): as Algorithm 1, from the boundaries 3 and 1 of section 4.4. Its line 3 starts at
    floor(γ/2) instead, with which there are fewer hits (bench/results/printed-traces.txt). With λ = 0.1 a
    boundary can only fall: to raise one of 4, |Δ| >= 14 is needed, and |Δ| <= γ+1. Small changes lower it
    step by step to 1, where it stays, because floor(0.9 + 0.1 |Δ|) is 1. So after some steps every change
    counts, and AdaBC adapts no more. Floors are those of exact arithmetic: a rounding error of binary
    fractions never costs a whole unit.
Ours: boundaries are real numbers, and Δ is K √p - s. p is the share of the latest tokens that wanted the
    expert. So Δ is the change against the frequency that the utility stands for, in levels. In a step of
    n >= γ+1 tokens p is f / n. Shorter steps, down to decoding without speculation, are averaged over about
    as many tokens: p <- p + a (f / n - p), a = n / (γ+1). Boundaries start at one level and never fall below
    it. A change of three quarters of a boundary reaches the boundary, because θ comes down to a steady |Δ|
    from above and |Δ| would never reach it.

The default differs from the paper for this reason: Δ of Algorithm 1 telescopes. So s would follow f_t if
every change counted, but changes below a boundary are never counted. If a demand rises at once and falls
slowly, its utility stays too high for good, and no later observation corrects it. A utility that is measured
against the level cannot drift. The root spaces the levels closely where demand is low: it matters more if an
expert is wanted at all than if six or nine tokens want it.

The paper leaves two points undefined. Here f_0 = 0, so the first step is a rise of every expert that it used.
K may exceed γ: the transition does not depend on it, and climbing to K only takes more steps. Padding has
utility 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from spac.machine.arrays import BoolArray, Float64Array, Int32Array

if TYPE_CHECKING:
    from spac.papers.moe_spac import MoeSpacOptions

WHOLE_STEP = 9
"""γ + 1: the tokens of a step that counts in full. Shorter steps count in proportion."""

_PRINTED, _OURS = (3.0, 1.0), (1.0, 1.0)  # (θ_up, θ_down) at the start, and without calibration
_REACH = 0.75  # share of a boundary at which a change reaches it in our form, see above
_ROUNDING = 1e-9  # far above a double's error here, far below the smallest step of a floor


class UtilityEstimator:
    """Estimates the utilities of all experts of one model."""

    def __init__(self, exists: BoolArray, options: MoeSpacOptions) -> None:
        """Start with utilities of 0. exists: bool [L, N], False where a layer has no such expert."""
        self.options = options
        self._padding = None if exists.all() else ~exists
        up, down = _PRINTED if options.printed else _OURS
        self.utility: Int32Array = np.zeros(exists.shape, np.int32)
        """s for the coming step, int32 [L, N]."""
        self.up: Float64Array = np.full(exists.shape, up)
        """θ_up, float64 [L, N], in levels, or in activations where printed."""
        self.down: Float64Array = np.full(exists.shape, down)
        """θ_down, float64 [L, N], in the same units."""
        self.last: Float64Array = np.zeros(exists.shape)
        """p, float64 [L, N]; f_{t-1} where printed."""

    def observe(self, demand: Int32Array, n_verified: int) -> Int32Array:
        """Run one iteration of the algorithm's loop, and return the next step's utilities, int32 [L, N].

        demand: int32 [L, N], activations of every expert by the `n_verified` tokens of the step; it is not
        kept. The result is the estimator's own array. The next call overwrites it.
        """
        change = self._change(demand, max(1, n_verified))
        reach = 1.0 if self.options.printed else _REACH
        rises = change >= self.up * reach
        falls = (-change >= self.down * reach) & ~rises
        self.utility += rises
        self.utility -= falls
        np.clip(self.utility, 0, self.options.levels, out=self.utility)
        if self._padding is not None:
            self.utility[self._padding] = 0
        if self.options.adapt:
            self._calibrate(self.up, change)
            self._calibrate(self.down, -change)
        return self.utility

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """Return copies of the learned arrays, by name."""
        return {
            "utility": self.utility.copy(),
            "up": self.up.copy(),
            "down": self.down.copy(),
            "last": self.last.copy(),
        }

    def restore(self, state: dict[str, npt.NDArray[Any]]) -> None:
        """Continue from the result of `state` of an estimator with the same shapes."""
        self.utility = np.clip(state["utility"], 0, self.options.levels)
        self.up, self.down, self.last = (state[name].copy() for name in ("up", "down", "last"))

    def _change(self, demand: Int32Array, n_verified: int) -> Float64Array:
        """Return Δ, float64 [L, N], and store f or p for the next step."""
        if self.options.printed:
            change = demand - self.last
            self.last = demand.astype(np.float64)
            return np.asarray(change)
        share = min(1.0, n_verified / WHOLE_STEP)
        self.last += share * (demand / n_verified - self.last)
        return np.asarray(self.options.levels * np.sqrt(self.last) - self.utility)

    def _calibrate(self, boundary: Float64Array, change: Float64Array) -> None:
        """Move a boundary after a change in its direction (lines 17-25). Elsewhere it stays."""
        share = self.options.forgetting
        moved = (1 - share) * boundary + share * change
        if self.options.printed:
            np.floor(moved + _ROUNDING, out=moved)
        else:
            np.maximum(moved, 1.0, out=moved)
        np.copyto(boundary, moved, where=change > 0)

"""MoE-SpAc's speculative utility estimator (section 3.2, Algorithm 1, Eq. 6), for all experts at once.

Every expert has a utility s in 0..K, 0 for dormant and K for saturated. After each verification, the
estimator takes the change Δ = f_t - f_{t-1} of the expert's activation frequency. It compares Δ with two
boundaries of the expert:

    s <- min(K, s + 1)  if  Δ >= θ_up;      s <- max(0, s - 1)  if  -Δ >= θ_down;      else s stays   (Eq. 6)

The boundary on the side of the change moves toward the change: θ <- (1 - λ) θ + λ |Δ|.

`UtilityOptions.form` selects one of three forms:

"literal": as printed. With λ = 0.1 a boundary can only fall: to raise one of 4, |Δ| >= 14 is needed, and
    |Δ| <= γ+1. Small changes lower it step by step to 1, where it stays, because floor(0.9 + 0.1 |Δ|) is 1.
    So after some steps every change counts, and AdaBC adapts no more. A boundary of 0 exists for γ <= 1
    alone, where floor(γ/2) = 0: then an expert at rest (Δ = 0 >= 0) is promoted. The printed start is
    floor(γ/2); the text of section 4.4 calls (3, 1) the default (`boundaries`). Floors are those of exact
    arithmetic: a rounding error of binary fractions never costs a whole unit.
"real": boundaries are real numbers of at least 1. When γ varies, f is scaled to the γ+1 tokens that the
    boundaries refer to: f (γ+1) / (tokens verified).
"level" (default): like "real", but Δ is K √p - s. p is the share of the latest tokens that wanted the expert.
    So Δ is the change against the frequency that the utility stands for, in levels. In a step of n >= γ+1
    tokens p is f / n. Shorter steps, down to decoding without speculation, are averaged over about as many
    tokens: p <- p + a (f / n - p), a = n / (γ+1). Boundaries start at one level and never fall below it. A
    change of three quarters of a boundary reaches the boundary, because θ comes down to a steady |Δ| from
    above and |Δ| would never reach it.

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

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from spac.errors import InputError
from spac.machine.arrays import BoolArray, Float64Array, Int32Array

FIXED = {"level": (1.0, 1.0), "real": (3.0, 1.0), "literal": (3.0, 1.0)}
"""(θ_up, θ_down) without calibration: the paper's (Table 4), and for "level" its starting boundaries."""

_REACH = 0.75
"""The share of a boundary at which a change reaches it in the form "level", see above."""
_ROUNDING = 1e-9  # far above a double's error here, far below the smallest step of a floor


@dataclass(frozen=True)
class UtilityOptions:
    """The options of Algorithm 1. Raise InputError for values that it cannot use."""

    levels: int = 4
    """K: the highest utility."""
    forgetting: float = 0.1
    """λ: the share of the newest change in a boundary."""
    form: str = "level"
    """The form: "level", "real" or "literal"; see the module."""
    draft_length: int = 8
    """γ: boundaries refer to steps of γ+1 tokens. They start at floor(γ/2), or at one level ("level")."""
    adapt: bool = True
    """True: boundaries are calibrated. False: the boundaries stay at FIXED."""
    boundaries: str = "half"
    """The boundaries at the start: "half" for floor(γ/2) (line 3), "fixed" for FIXED (section 4.4)."""

    def __post_init__(self) -> None:
        if not 1 <= self.levels <= 64:
            raise InputError(f"levels (K) must be 1 to 64, not {self.levels}")
        if not 0 <= self.forgetting <= 1:
            raise InputError(f"forgetting (λ) must be 0 to 1, not {self.forgetting:g}")
        if self.draft_length < 0:
            raise InputError(f"draft_length (γ) must be at least 0, not {self.draft_length}")
        if self.form not in FIXED:
            raise InputError(f"form must be one of {', '.join(FIXED)}, not '{self.form}'")
        if self.boundaries not in ("half", "fixed"):
            raise InputError(f"boundaries must be one of half, fixed, not '{self.boundaries}'")

    @property
    def start(self) -> tuple[float, float]:
        """The boundaries (θ_up, θ_down) before the first step."""
        if not self.adapt or self.boundaries == "fixed":
            return FIXED[self.form]
        if self.form == "level":
            return 1.0, 1.0
        boundary = float(self.draft_length // 2)
        if self.form == "real":
            boundary = max(1.0, boundary)
        return boundary, boundary


class UtilityEstimator:
    """Estimates the utilities of all experts of one model."""

    def __init__(self, exists: BoolArray, options: UtilityOptions | None = None) -> None:
        """Start with utilities of 0. exists: bool [L, N], False where a layer has no such expert."""
        self.options = options = options or UtilityOptions()
        self._padding = None if exists.all() else ~exists
        up, down = options.start
        self.utility: Int32Array = np.zeros(exists.shape, np.int32)
        """s for the coming step, int32 [L, N]."""
        self.up: Float64Array = np.full(exists.shape, up)
        """θ_up, float64 [L, N], in levels ("level") or activations."""
        self.down: Float64Array = np.full(exists.shape, down)
        """θ_down, float64 [L, N], in the same units."""
        self.last: Float64Array = np.zeros(exists.shape)
        """f_{t-1}, float64 [L, N]; p for "level"."""

    def observe(self, demand: Int32Array, n_verified: int) -> Int32Array:
        """Run one iteration of the algorithm's loop, and return the next step's utilities, int32 [L, N].

        demand: int32 [L, N], activations of every expert by the `n_verified` tokens of the step; it is not
        kept. The result is the estimator's own array. The next call overwrites it.
        """
        change = self._change(demand, max(1, n_verified))
        reach = _REACH if self.options.form == "level" else 1.0
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
        options = self.options
        if options.form == "level":
            share = min(1.0, n_verified / (options.draft_length + 1))
            self.last += share * (demand / n_verified - self.last)
            return np.asarray(options.levels * np.sqrt(self.last) - self.utility)
        frequency = demand.astype(np.float64)
        if options.form == "real":
            frequency *= (options.draft_length + 1) / n_verified
        change = frequency - self.last
        self.last = frequency
        return change

    def _calibrate(self, boundary: Float64Array, change: Float64Array) -> None:
        """Move a boundary after a change in its direction (lines 17-25). Elsewhere it stays."""
        share = self.options.forgetting
        moved = (1 - share) * boundary + share * change
        if self.options.form == "literal":
            np.floor(moved + _ROUNDING, out=moved)
        else:
            np.maximum(moved, 1.0, out=moved)
        np.copyto(boundary, moved, where=change > 0)

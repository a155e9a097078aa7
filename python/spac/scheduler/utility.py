"""MoE-SpAc's speculative utility estimator (section 3.2, Algorithm 1, Eq. 6), for all experts at once.

Every expert has a utility s in 0..K, 0 for dormant and K for saturated. After each verification, the change
Δ = f_t - f_{t-1} of its activation frequency is compared with two boundaries of its own,

    s <- min(K, s + 1)  if  Δ >= θ_up;      s <- max(0, s - 1)  if  -Δ >= θ_down;      else s stays   (Eq. 6)

and the boundary on the side of the change moves toward the change: θ <- (1 - λ) θ + λ |Δ|.

Three forms, `UtilityOptions.form`:

"literal": as printed. floor(0.9 θ + 0.1 |Δ|) can only fall, for raising a boundary of 4 takes |Δ| >= 14 and
    |Δ| <= γ+1. It ends at 0 where Δ is small, and then, as from the start with γ <= 1, an expert at rest
    (Δ = 0 >= 0) is promoted. Floors are those of exact arithmetic: a rounding error of binary fractions never
    costs a whole unit.
"real": boundaries are real numbers of at least 1, and when γ varies, f is scaled to the γ+1 tokens that the
    boundaries stand for: f (γ+1) / (tokens verified).
"level" (default): like "real", but Δ is K √p - s, where p is the share of the latest tokens that wanted the
    expert: what has changed against the frequency that the utility stands for, in levels. In a step of n >=
    γ+1 tokens p is f / n; shorter ones, down to decoding without speculation, are averaged over about as many
    tokens: p <- p + a (f / n - p), a = n / (γ+1). Boundaries start at one level and never fall below it, and
    three quarters of a boundary reach it: θ comes down to a steady |Δ| from above, and would never be met.

Why the default differs from the paper: Δ of Algorithm 1 telescopes, so that s would follow f_t if every
change counted, but what stays below a boundary is never counted. A demand that rises at once and falls slowly
leaves its utility behind for good, and no later observation corrects it. Measured against the level, it
cannot drift. The root spaces the levels closely where demand is low: whether an expert is wanted at all
matters more than whether six or nine tokens want it.

What the paper leaves undefined: f_0 = 0, so the first step is a rise of every expert that it used. K may
exceed γ: the transition does not depend on it, climbing to K only takes more steps. Padding has utility 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from spac.errors import InputError
from spac.scheduler.base import BoolArray, IntArray

FloatArray = npt.NDArray[np.float64]

FORMS = ("level", "real", "literal")
FIXED = {"level": (1.0, 1.0), "real": (3.0, 1.0), "literal": (3.0, 1.0)}
"""(θ_up, θ_down) without calibration: the paper's (Table 4), and the starting boundaries of "level"."""

_REACH = {"level": 0.75, "real": 1.0, "literal": 1.0}
"""The share of a boundary at which a change counts as having reached it."""
_ROUNDING = 1e-9  # far above a double's error here, far below the smallest step of a floor


@dataclass(frozen=True)
class UtilityOptions:
    """What Algorithm 1 can be varied in. Raises InputError for values that it cannot work with."""

    levels: int = 4
    """K: the highest utility."""
    forgetting: float = 0.1
    """λ: the share of the newest change in a boundary."""
    form: str = "level"
    """"level", "real" or "literal"."""
    draft_length: int = 8
    """γ: boundaries start at floor(γ/2), or at one level ("level"), and stand for steps of γ+1 tokens."""
    adapt: bool = True
    """Adaptive boundary calibration; without it the boundaries stay at FIXED."""

    def __post_init__(self) -> None:
        if not 1 <= self.levels <= 64:
            raise InputError(f"levels (K) must be 1 to 64, not {self.levels}")
        if not 0 <= self.forgetting <= 1:
            raise InputError(f"forgetting (λ) must be 0 to 1, not {self.forgetting:g}")
        if self.draft_length < 0:
            raise InputError(f"draft_length (γ) must be at least 0, not {self.draft_length}")
        if self.form not in FORMS:
            raise InputError(f"form must be one of {', '.join(FORMS)}, not '{self.form}'")

    @property
    def start(self) -> tuple[float, float]:
        """(θ_up, θ_down) before the first step."""
        if not self.adapt:
            return FIXED[self.form]
        if self.form == "level":
            return 1.0, 1.0
        boundary = float(self.draft_length // 2)
        if self.form == "real":
            boundary = max(1.0, boundary)
        return boundary, boundary


class UtilityEstimator:
    """Utilities of all experts of one model."""

    def __init__(self, exists: BoolArray, options: UtilityOptions | None = None) -> None:
        """exists: bool [L, N], False where a layer has no such expert."""
        self.options = options = options or UtilityOptions()
        self._padding = None if exists.all() else ~exists
        up, down = options.start
        self.utility: IntArray = np.zeros(exists.shape, np.int32)
        """int32 [L, N]: s, of the step to come."""
        self.up: FloatArray = np.full(exists.shape, up)
        """float64 [L, N]: θ_up, in levels ("level") or activations."""
        self.down: FloatArray = np.full(exists.shape, down)
        """float64 [L, N]: θ_down, likewise."""
        self.last: FloatArray = np.zeros(exists.shape)
        """float64 [L, N]: f_{t-1}, or p of "level"."""

    def observe(self, demand: IntArray, n_verified: int) -> IntArray:
        """One iteration of the algorithm's loop: the utilities for the next step.

        demand: int32 [L, N], activations of every expert by the `n_verified` tokens of the step (not kept).
        The result is the estimator's own array, overwritten by the next call.
        """
        change = self._change(demand, max(1, n_verified))
        reach = _REACH[self.options.form]
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
        """All that it has learned, as arrays by name."""
        return {
            "utility": self.utility.copy(),
            "up": self.up.copy(),
            "down": self.down.copy(),
            "last": self.last.copy(),
        }

    def restore(self, state: dict[str, npt.NDArray[Any]]) -> None:
        """Go on from what `state` gave, of the same shapes."""
        self.utility = np.clip(state["utility"], 0, self.options.levels)
        self.up, self.down, self.last = (state[name].copy() for name in ("up", "down", "last"))

    def _change(self, demand: IntArray, n_verified: int) -> FloatArray:
        """float64 [L, N]: Δ."""
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

    def _calibrate(self, boundary: FloatArray, change: FloatArray) -> None:
        """Moves a boundary after a change in its direction (lines 17-25); elsewhere it stays."""
        share = self.options.forgetting
        moved = (1 - share) * boundary + share * change
        if self.options.form == "literal":
            np.floor(moved + _ROUNDING, out=moved)
        else:
            np.maximum(moved, 1.0, out=moved)
        np.copyto(boundary, moved, where=change > 0)

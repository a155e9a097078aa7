"""Control how fast routing changes, by embeddings that drift along the chain.

An embedding is √(1 − w − c)·own + √w·slow + √c·common, all standard normal per dimension: `own` belongs to
the token alone, `slow` is an AR(1) process along the chain with persistence s, `common` is one vector. A
router's logits are projections of it, so their correlation over a lag of j tokens is w·sʲ + c for any width.
Locality follows from w, s and c, the number of experts and the number that a token uses. `common` gives each
expert a constant logit: static skew.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

Active = npt.NDArray[np.bool_]

NEAR = 8  # tokens that "near" looks back over
DRAFTS = (3, 5, 8)
PAPER_GROWTH = {3: 2.24, 5: 3.20, 8: 4.13}
"""Experts of a step of γ + 1 tokens over those of one token: MoE-SpAc, Appendix A.1 (Qwen3-235B-A22B)."""
PUBLISHED = (0.45, 0.80)
"""Shares of a token's experts that the last token used, and that one of the last 8 used (Qwen3-30B)."""


@dataclass(frozen=True)
class Drift:
    """The parameters w, s and c of the module's text."""

    share: float
    persistence: float
    skew: float = 0.0

    def __post_init__(self) -> None:
        if not (self.share >= 0 and self.skew >= 0 and self.share + self.skew < 0.999):
            raise ValueError(f"drift: the shares {self.share:g} and {self.skew:g} leave a token nothing")
        if not 0 <= self.persistence <= 1:
            raise ValueError(f"drift: the persistence {self.persistence:g} is not within 0 to 1")


@dataclass(frozen=True)
class Locality:
    """Locality of routing over a text, averaged over layers. Shares are of a token's experts."""

    kept: float  # the last token used them too
    near: float  # one of the last 8 tokens used them
    growth: dict[int, float]  # by draft length γ: distinct experts of γ + 1 tokens over those of one

    @classmethod
    def of(cls, active: Active) -> Locality:
        """Return the locality of bool [T, L, N]: the token used the expert. T has to be more than 9."""
        n_token = len(active)
        if n_token <= max(NEAR, *DRAFTS):
            raise ValueError(f"{n_token} tokens are too few to measure locality over")
        now = active[NEAR:]
        recent = [active[NEAR - back : n_token - back] for back in range(1, NEAR + 1)]
        n_used = now.sum()
        growth = {}
        for length in DRAFTS:
            window = active[: n_token - length].copy()
            for ahead in range(1, length + 1):
                window |= active[ahead : n_token - length + ahead]
            growth[length] = float(window.sum() / active[: n_token - length].sum())
        kept, near = ((now & each).sum() / n_used for each in (recent[0], np.logical_or.reduce(recent)))
        return cls(float(kept), float(near), growth)


def simulate(drift: Drift, n_expert: int, n_used: int, n_token: int = 240, n_row: int = 40) -> Active:
    """Return bool [T, rows, N]: routing by logits of that drift, without a model. The numbers are always the
    same."""
    rng = np.random.default_rng(1)
    own = np.sqrt(1 - drift.share - drift.skew)
    common = np.sqrt(drift.skew) * rng.standard_normal((n_row, n_expert), dtype=np.float32)
    slow = rng.standard_normal((n_row, n_expert), dtype=np.float32)
    active = np.zeros((n_token, n_row, n_expert), np.bool_)
    step = np.sqrt(1 - drift.persistence**2)
    for now in active:
        slow = drift.persistence * slow + step * rng.standard_normal(slow.shape, dtype=np.float32)
        logits = (
            own * rng.standard_normal(slow.shape, dtype=np.float32) + np.sqrt(drift.share) * slow + common
        )
        chosen = np.argpartition(logits, n_expert - n_used, axis=1)[:, n_expert - n_used :]
        np.put_along_axis(now, chosen, True, axis=1)
    return active


@cache
def solve(kept: float, near: float, n_expert: int, n_used: int, skew: float = 0.0) -> Drift:
    """Return the drift whose routing has this locality, to about a point. Raise ValueError with the range
    that is possible.

    `kept` fixes the correlation over one token, w·s + c. Among the drifts of that correlation `near` grows
    with s, from a pure AR(1) process (w = 1 − c) to a slow part that stands still (s = 1).
    """

    def measured(rho: float, persistence: float) -> Locality:
        drift = Drift(min((rho - skew) / persistence, 0.998 - skew), persistence, skew)
        return Locality.of(simulate(drift, n_expert, n_used))

    least, most = measured(skew, 1.0).kept, measured(0.99, 1.0).kept
    if not least <= kept <= most:
        raise ValueError(f"locality: {kept:.0%} kept cannot be had, {least:.0%} to {most:.0%} can")
    rho = _bisect(lambda x: measured(x, 1.0).kept - kept, skew, 0.99)
    slowest, fastest = 1.0, max(rho - skew, 1e-3) / (0.998 - skew)
    low, high = measured(rho, fastest).near, measured(rho, slowest).near
    if not low - 0.02 <= near <= high + 0.02:
        raise ValueError(
            f"locality: with {kept:.0%} kept, {near:.0%} within {NEAR} tokens cannot be had, "
            f"{low:.0%} to {high:.0%} can"
        )
    persistence = _bisect(lambda x: measured(rho, x).near - near, fastest, slowest)
    return Drift((rho - skew) / persistence, persistence, skew)


def _bisect(function: Callable[[float], float], low: float, high: float) -> float:
    """Return the point where a growing function crosses zero, to a thousandth of the range."""
    for _ in range(10):
        middle = (low + high) / 2
        low, high = (middle, high) if function(middle) < 0 else (low, middle)
    return (low + high) / 2

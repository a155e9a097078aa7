"""What the steps of a generation showed of predictions and reuse, beside the mechanism's counters.

Everything is of verifications; the prompt is in none of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from spac.scheduler import Plan
from spac.scheduler.base import BoolArray, IntArray

FloatArray = npt.NDArray[np.float64]


class Leveled(Protocol):
    """A scheduler whose utilities have levels 0..K."""

    @property
    def n_level(self) -> int:
        """K."""

    @property
    def utility(self) -> IntArray:
        """int32 [L, N], as of the last step."""


@dataclass
class Insight:
    """Sums over the steps of one generation."""

    true_hot: int = 0
    false_hot: int = 0
    true_cold: int = 0
    false_cold: int = 0
    pairs_by_level: FloatArray = field(default_factory=lambda: np.zeros(0))
    """float64 [K+1]: activations of experts by the utility that they had before the step."""
    experts_by_level: FloatArray = field(default_factory=lambda: np.zeros(0))
    """float64 [K+1]: distinct experts of a step, likewise."""
    reuse: dict[int, list[int]] = field(default_factory=dict)
    """By the tokens verified: activations, and distinct experts, of all such steps."""
    scheduler_ns: int = 0

    def observe(
        self, demand: IntArray, n_verified: int, plan: Plan, exists: BoolArray, scheduler: Any
    ) -> None:
        """One verification: int32 [L, N] demand of `n_verified` tokens, with the plan that stood before it.

        To be called before the scheduler has seen the step. exists: bool [L, N], see `View.exists`. A
        scheduler that is `Leveled` tells of its levels too.
        """
        n_pairs, n_used, n_wanted, n_both, n_exist = counted(demand, plan, exists)
        sums = self.reuse.setdefault(n_verified, [0, 0])
        sums[0] += n_pairs
        sums[1] += n_used
        self.true_hot += n_both
        self.false_hot += n_wanted - n_both
        self.false_cold += n_used - n_both
        self.true_cold += n_exist - n_wanted - n_used + n_both
        if hasattr(scheduler, "n_level"):  # isinstance is slow with protocols
            self._observe_levels(demand, scheduler)

    def _observe_levels(self, demand: IntArray, scheduler: Leveled) -> None:
        used = demand > 0
        n_level, levels = scheduler.n_level, scheduler.utility[used]
        if len(self.pairs_by_level) != n_level + 1:
            self.pairs_by_level, self.experts_by_level = np.zeros(n_level + 1), np.zeros(n_level + 1)
        self.pairs_by_level += np.bincount(levels, demand[used], n_level + 1)
        self.experts_by_level += np.bincount(levels, None, n_level + 1)

    @property
    def prediction(self) -> dict[str, float | None] | None:
        """How well what the plan wanted told what the verification would use; None without verifications.

        Every (layer, expert) of every verification is one prediction: "hot" when the plan in force wants it
        resident (priority >= threshold of its layer), against whether the verification activated it
        (MoE-SpAc's Fig. 4). `accuracy`: right ones of all; `precision`: activated of those called hot;
        `recall`: called hot of those activated; `activated`: share that was activated, so that calling all
        cold has accuracy 1 - activated.
        """
        n_used = self.true_hot + self.false_cold
        n_hot = self.true_hot + self.false_hot
        n = n_hot + self.true_cold + self.false_cold
        if not n:
            return None
        return {
            "accuracy": (self.true_hot + self.true_cold) / n,
            "precision": self.true_hot / n_hot if n_hot else None,
            "recall": self.true_hot / n_used if n_used else None,
            "activated": n_used / n,
        }

    @property
    def shares_by_threshold(self) -> dict[str, list[float]] | None:
        """r_c and r_g of MoE-SpAc (Eq. 7, 8; Fig. 9) for τ = 1..K, had the threshold been τ in every layer.

        `r_c`: share of the activations whose expert had a utility below τ before the step, the CPU's;
        `r_g`: share of a step's distinct activated experts with at least τ, the device's. None for
        schedulers without utility levels.
        """
        pairs, experts = self.pairs_by_level, self.experts_by_level
        if not pairs.sum():
            return None
        return {
            "r_c": (pairs.cumsum()[:-1] / pairs.sum()).tolist(),
            "r_g": (experts[::-1].cumsum()[::-1][1:] / experts.sum()).tolist(),
        }

    @property
    def reuse_by_tokens(self) -> dict[str, float]:
        """a/b (MoE-SpAc's Fig. 7): activations per distinct (layer, expert), by the tokens of the step."""
        return {str(n): a / b for n, (a, b) in sorted(self.reuse.items()) if b}


def counted(
    demand: IntArray, plan: Plan, exists: BoolArray, *, fast: bool = True
) -> tuple[int, int, int, int, int]:
    """Activations; then experts: activated ones, wanted ones, both, all.

    fast: in C++ (csrc/core/hot_cold.h), where the plan speaks of all layers.
    """
    if fast and plan.layers is None:
        from spac import _core  # here, for reports are written without the library

        return _core.hot_cold(demand, plan.priority, plan.threshold, exists)
    used, wanted = demand > 0, plan.wanted & exists
    n_used, n_wanted, n_both, n_exist = (
        int(np.count_nonzero(each)) for each in (used, wanted, wanted & used, exists)
    )
    return int(demand.sum()), n_used, n_wanted, n_both, n_exist


def given_options(scheduler: object, written: Mapping[str, Any]) -> dict[str, Any]:
    """A scheduler's options that are not its defaults: what its `options` hold, else what was `written`.

    Numbers, words and truth values as they are, anything else as text.
    """
    options: Any = getattr(scheduler, "options", None)
    given = written
    if hasattr(type(options), "__dataclass_fields__"):
        default = type(options)()
        given = {name: value for name, value in vars(options).items() if value != getattr(default, name)}
    return {
        name: value if isinstance(value, bool | int | float | str) else str(value)
        for name, value in given.items()
    }

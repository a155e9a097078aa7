"""The prediction statistics and the reuse of experts in the steps of a generation.

They add to the mechanism's counters. They count verifications only, and leave out the prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from spac.machine.arrays import BoolArray, Float64Array, Int32Array
from spac.scheduler import Plan


class Leveled(Protocol):
    """A scheduler whose utilities have levels 0..K."""

    @property
    def n_level(self) -> int:
        """The highest level, K."""

    @property
    def utility(self) -> Int32Array:
        """The utility of each expert after the last step, int32 [L, N]."""


@dataclass
class PredictionStats:
    """The prediction statistics of one generation, as sums over its steps."""

    true_hot: int = 0
    false_hot: int = 0
    true_cold: int = 0
    false_cold: int = 0
    pairs_by_level: Float64Array = field(default_factory=lambda: np.zeros(0))
    """The activations for each utility that the expert had before the step, float64 [K+1]."""
    experts_by_level: Float64Array = field(default_factory=lambda: np.zeros(0))
    """The distinct experts of a step for each utility before the step, float64 [K+1]."""
    reuse: dict[int, list[int]] = field(default_factory=dict)
    """The sums [activations, distinct experts] of all steps with each number of verified tokens."""
    scheduler_ns: int = 0
    """The scheduler's time, also where it works while the next step computes."""
    complete: Callable[[], object] = lambda: None
    """The function that waits until all steps are counted, where another thread counts them."""
    check: Callable[[], object] = lambda: None
    """The function that also raises what the scheduler has raised there, once."""

    def observe(
        self, demand: Int32Array, n_verified: int, plan: Plan, exists: BoolArray, scheduler: Any
    ) -> None:
        """Count one verification of `n_verified` tokens.

        `demand` is int32 [L, N]. `plan` is the plan in force before the verification. `exists` is bool
        [L, N], see `View.exists`. The levels of a `Leveled` scheduler are counted too, so call this before
        the scheduler sees the step.
        """
        n_pairs, n_used, n_wanted, n_both, n_exist = counted(demand, plan, exists)
        sums = self.reuse.setdefault(n_verified, [0, 0])
        sums[0] += n_pairs
        sums[1] += n_used
        self.true_hot += n_both
        self.false_hot += n_wanted - n_both
        self.false_cold += n_used - n_both
        self.true_cold += n_exist - n_wanted - n_used + n_both
        if hasattr(scheduler, "n_level"):  # isinstance() is slow with protocols.
            self._observe_levels(demand, scheduler)

    def _observe_levels(self, demand: Int32Array, scheduler: Leveled) -> None:
        used = demand > 0
        n_level, levels = scheduler.n_level, scheduler.utility[used]
        if len(self.pairs_by_level) != n_level + 1:
            self.pairs_by_level, self.experts_by_level = np.zeros(n_level + 1), np.zeros(n_level + 1)
        self.pairs_by_level += np.bincount(levels, demand[used], n_level + 1)
        self.experts_by_level += np.bincount(levels, None, n_level + 1)

    @property
    def prediction(self) -> dict[str, float | None] | None:
        """The quality of the plans as predictions of verifications, as shares; None without verifications.

        Every (layer, expert) of every verification is one prediction (MoE-SpAc's Fig. 4). The prediction is
        "hot" if the plan in force wants the expert resident (priority >= threshold of its layer), else
        "cold". A hot one is right if the verification activated the expert, a cold one if it did not.

        `accuracy` is the share of right predictions. `precision` is the share of hot predictions whose
        expert was activated. `recall` is the share of activated experts that were predicted hot. `activated`
        is the share of experts that were activated; predicting all cold has accuracy 1 - activated.
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
        """The shares r_c and r_g of MoE-SpAc (Eq. 7, 8; Fig. 9) for a threshold τ = 1..K in every layer.

        `r_c` is the share of activations whose expert had a utility below τ before the step; it is the CPU's.
        `r_g` is the share of a step's distinct activated experts with a utility of at least τ; it is the
        device's. None for schedulers without utility levels.
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
        """The activations per distinct (layer, expert), by the step's tokens: a/b of MoE-SpAc's Fig. 7."""
        return {str(n): a / b for n, (a, b) in sorted(self.reuse.items()) if b}


def counted(demand: Int32Array, plan: Plan, exists: BoolArray) -> tuple[int, int, int, int, int]:
    """Return the numbers of activations, activated experts, wanted experts, both, and all experts."""
    used, wanted = demand > 0, plan.wanted & exists
    n_used, n_wanted, n_both, n_exist = (
        int(np.count_nonzero(each)) for each in (used, wanted, wanted & used, exists)
    )
    return int(demand.sum()), n_used, n_wanted, n_both, n_exist


def given_options(scheduler: object, written: Mapping[str, Any]) -> dict[str, Any]:
    """Return a scheduler's options that are not its defaults.

    They come from the scheduler's `options` if that is a dataclass, else from `written`. Numbers, strings and
    booleans are returned as they are, anything else as text.
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

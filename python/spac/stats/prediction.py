"""The prediction statistics of the steps of a generation.

They add to the mechanism's counters. They count verifications only, and leave out the prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from spac.machine.arrays import BoolArray, Int32Array
from spac.scheduler import Plan


@dataclass
class PredictionStats:
    """The prediction statistics of one generation, as sums over its steps."""

    true_hot: int = 0
    false_hot: int = 0
    true_cold: int = 0
    false_cold: int = 0
    scheduler_ns: int = 0
    """The scheduler's time, also where it works while the next step computes."""
    complete: Callable[[], object] = lambda: None
    """The function that waits until all steps are counted, where another thread counts them."""
    check: Callable[[], object] = lambda: None
    """The function that also raises what the scheduler has raised there, once."""

    def observe(self, demand: Int32Array, plan: Plan, exists: BoolArray) -> None:
        """Count one verification.

        `demand` is int32 [L, N]. `plan` is the plan in force before the verification. `exists` is bool
        [L, N], see `View.exists`.
        """
        used, wanted = demand > 0, plan.wanted & exists
        n_used, n_wanted, n_both, n_exist = (
            int(np.count_nonzero(each)) for each in (used, wanted, wanted & used, exists)
        )
        self.true_hot += n_both
        self.false_hot += n_wanted - n_both
        self.false_cold += n_used - n_both
        self.true_cold += n_exist - n_wanted - n_used + n_both

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

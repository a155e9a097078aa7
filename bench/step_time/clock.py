"""Model an engine's clock, for costs that are learned in use as an engine learns them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from spac.costs import Costs
from spac.costs.estimator import CostEstimator, StepTimes
from spac.machine.arrays import Float64Array
from spac.scheduler import Layer

LAYER_COST = np.dtype(
    [("host_ns", "i8"), ("wait_ns", "i8"), ("host_activations", "i4"), ("host_distinct", "i4"),
     ("device_activations", "i4"), ("device_distinct", "i4"), ("loaded_distinct", "i4")]
)  # fmt: skip
"""The columns of `Step.layer_costs`."""


@dataclass(frozen=True)
class Known:
    """Costs as a profile measured them, which stay the same (`spac.costs.LiveCosts`)."""

    costs: Costs
    learns = False


class Learned:
    """Costs that are guessed from sizes and corrected by every step, as on a machine without a profile."""

    learns = True

    def __init__(
        self, layers: tuple[Layer, ...], n_tokens: int, *, noise: float, stalls: float, stall_s: float
    ) -> None:
        """Guess the costs. `noise` is the relative noise of every time. `stalls` is the share of waits that
        take `stall_s` longer, whatever the cause (another program, a copy in the way)."""
        self._estimator = CostEstimator(Costs.guessed(layers, n_tokens), layers)
        self._rng = np.random.default_rng(1)
        self._noise, self._stalls, self._stall_s = noise, stalls, stall_s

    @property
    def costs(self) -> Costs:
        return self._estimator.costs

    def observe(self, n_verified: int, draft_s: float, verify_s: float, layers: Float64Array,
                uploads: tuple[int, float]) -> None:  # fmt: skip
        """Learn from a step. layers: float64 [L, 6], a row in the order of LAYER_COST, times in seconds;
        uploads: bytes and seconds."""
        rng, times = self._rng, layers[:, :2]
        shown = times * np.exp(self._noise * rng.standard_normal(times.shape))
        shown[:, 1] += self._stall_s * (rng.random(len(layers)) < self._stalls)
        shown[times == 0] = 0
        work = np.zeros(len(layers), LAYER_COST)
        columns = (*(shown * 1e9).T, *layers[:, 2:].T)
        for name, column in zip((LAYER_COST.names or ())[:-1], columns, strict=True):  # nothing is loaded
            work[name] = column
        self._estimator.observe(
            StepTimes(
                n_drafted=n_verified - 1,
                draft_s=draft_s,
                n_verified=n_verified,
                verify_s=verify_s + float((shown - times).sum()),
                layers=work,
                upload_bytes=uploads[0],
                upload_s=uploads[1],
            )
        )

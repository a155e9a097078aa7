"""Unit times of experts on CPU and device.

In the paper (Eq. 7), the CPU takes a time per activated pair (token, expert). A kernel that reads an expert's
weights once for all tokens that want it also takes a time per distinct expert:

    T_cpu = per_layer + per_expert · distinct + per_pair · pairs        (the paper: `per_pair` alone)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from spac.costs import ExpertCosts
from spac.errors import InputError
from spac.machine.arrays import Float64Array

Counts = npt.NDArray[np.integer[Any]] | Float64Array


@dataclass(frozen=True)
class UnitCosts:
    """Unit times in seconds, for experts of one size.

    Raise InputError for a time that is negative or not finite.
    """

    cpu_pair: float  # T_cpu^u: one (token, expert) on the CPU
    gpu_expert: float  # T_gpu^u: one distinct expert on the device
    upload: float  # T_io^u: one expert to the device
    draft_token: float = 0.0  # T_draft^u: one token of the draft model
    cpu_expert: float = 0.0  # one distinct expert on the CPU, besides its pairs; 0 in the paper's form
    cpu_layer: float = 0.0  # a layer with any expert on the CPU, besides both; 0 in the paper's form

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not (np.isfinite(value) and value >= 0):
                raise InputError(f"unit cost {name} must be a time of at least 0 s, not {value!r}")

    @classmethod
    def of(cls, costs: ExpertCosts, draft_token: float, *, by_expert: bool = True) -> UnitCosts:
        """Return the unit times of measured costs.

        by_expert=False uses a time per pair only (Eq. 7 as printed). The time of an upload is the one that it
        takes while both sides compute.
        """
        return cls(
            cpu_pair=costs.cpu_pair_s if by_expert else costs.cpu_pair_only_s,
            cpu_expert=costs.cpu_expert_s if by_expert else 0.0,
            cpu_layer=costs.cpu_layer_s if by_expert else 0.0,
            gpu_expert=costs.device_expert_s,
            upload=costs.upload_busy_s,
            draft_token=draft_token,
        )

    @classmethod
    def guessed(cls, expert_bytes: int, *, by_expert: bool = True) -> UnitCosts:
        """Return guessed unit times, for use where nothing is measured."""
        return cls.of(ExpertCosts.guessed(expert_bytes), 1e-3, by_expert=by_expert)

    def cpu(self, pairs: Counts, distinct: Counts) -> Float64Array:
        """Return a layer's seconds for `pairs` of `distinct` experts, float64 of the arguments' shape."""
        work = self.cpu_pair * pairs + self.cpu_expert * distinct
        return np.asarray(work + self.cpu_layer * np.minimum(distinct, 1), np.float64)

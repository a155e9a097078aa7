"""Unit times of experts on CPU and device, and the models of the CPU's time that they come from.

In the paper (Eq. 7), the CPU takes a time per activated pair (token, expert). A kernel that reads an expert's
weights once for all tokens that want it also takes a time per distinct expert:

    T_cpu = per_layer + per_expert · distinct + per_pair · pairs        (the paper: `per_pair` alone)

`fit` finds either form from measurements.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from spac.costs import ExpertCosts
from spac.errors import InputError
from spac.machine.arrays import BoolArray, Float64Array, Int32Array

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


def step_seconds(counts: Int32Array, resident: BoolArray, costs: Sequence[UnitCosts]) -> Float64Array:
    """Return the time of each step's experts in seconds, float64 [T].

    counts: int32 [T, L, N] activations; resident: bool [T, L, N]; costs: of every layer. CPU and device
    compute side by side in every layer, so the time is the sum over the layers of max(T_cpu, T_gpu). The real
    residency takes the place of r_c and r_g.
    """
    on_cpu = np.where(resident, 0, counts)
    total = np.zeros(len(counts))
    for layer, cost in enumerate(costs):
        t_cpu = cost.cpu(on_cpu[:, layer].sum(axis=1), np.count_nonzero(on_cpu[:, layer], axis=1))
        n_gpu = np.count_nonzero(counts[:, layer], axis=1) - np.count_nonzero(on_cpu[:, layer], axis=1)
        total += np.maximum(t_cpu, cost.gpu_expert * n_gpu)
    return total


@dataclass(frozen=True)
class CpuFit:
    """A fitted model of the CPU's time, in seconds."""

    fixed: float  # per measurement, for any amount of work
    per_pair: float
    per_expert: float

    def predict(self, pairs: Counts, distinct: Counts) -> Float64Array:
        """Return the predicted seconds, float64 [n]."""
        return np.asarray(self.fixed + self.per_pair * pairs + self.per_expert * distinct, np.float64)


def fit(
    pairs: Counts,
    distinct: Counts,
    seconds: Float64Array,
    *,
    by_expert: bool = True,
    fixed: bool = False,
    relative: bool = False,
) -> CpuFit:
    """Return the model that explains measurements best: least squares without negative times.

    pairs, distinct: [n], the work of each measurement; seconds: float64 [n], above 0. by_expert=False uses
    the paper's form. fixed: also fit a time per measurement. relative: errors are shares of the measurements,
    so that short ones count as much as long ones. Outliers are dropped once. Raise InputError for fewer than
    8 measurements.
    """
    if len(seconds) < 8:
        raise InputError(f"a fit takes at least 8 measurements, not {len(seconds)}")
    columns = [np.full(len(seconds), float(fixed)), np.asarray(pairs, np.float64)]
    columns.append(np.asarray(distinct, np.float64) * float(by_expert))
    inputs = np.stack(columns, axis=1)
    if relative:
        inputs, seconds = inputs / seconds[:, None], np.ones(len(seconds))
    solution = _nonnegative(inputs, seconds)
    # An interrupted measurement is many times too long and would distort the fit.
    off = np.abs(inputs @ solution - seconds)
    kept = off <= 5 * np.median(off) + 1e-12
    return CpuFit(*_nonnegative(inputs[kept], seconds[kept]).tolist())


def _nonnegative(inputs: Float64Array, outputs: Float64Array) -> Float64Array:
    """Return the least-squares coefficients of at least 0.

    The result is exact: all supports are tried, which few columns allow.
    """
    n = inputs.shape[1]
    best, best_error = np.zeros(n), np.inf
    for support in range(1, 1 << n):
        chosen = [i for i in range(n) if support >> i & 1 and inputs[:, i].any()]
        if not chosen:
            continue
        solution = np.zeros(n)
        solution[chosen] = np.linalg.lstsq(inputs[:, chosen], outputs, rcond=None)[0]
        error = float(((inputs @ solution - outputs) ** 2).sum())
        if (solution >= 0).all() and error < best_error:
            best, best_error = solution, error
    return best

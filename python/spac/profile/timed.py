"""The computation of unit times from timed batches, without a device and without a clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

import numpy as np

from spac.costs import ExpertCosts
from spac.errors import InputError
from spac.machine.arrays import BoolArray, Float64Array, Int32Array
from spac.profile.probe import Decode
from spac.scheduler.cost import fit


@dataclass
class Timed:
    """One batch with one set of residents, evaluated several times."""

    tokens: Int32Array
    decodes: list[Decode] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        """The median time of the evaluations, in seconds."""
        return median(decode.seconds for decode in self.decodes)

    @property
    def host_s(self) -> Float64Array:
        """The median time of the CPU's experts in each layer, in seconds, float64 [L]."""
        return np.asarray(np.median([decode.layers["host_ns"] for decode in self.decodes], axis=0) * 1e-9)

    def counts(self, name: str) -> Float64Array:
        """Return a count of each layer such as "host_distinct", float64 [L]; all decodes have the same."""
        return self.decodes[-1].layers[name].astype(np.float64)


def cpu_times(rows: Sequence[Timed], layers: BoolArray) -> tuple[tuple[float, float, float], float] | None:
    """Return the CPU's times (per layer, per distinct expert, per pair), and the paper's per pair alone.

    All are in seconds. `layers` (bool [L]) marks the layers of one pool. Return None when the CPU had too
    little to compute there.
    """
    pairs, distinct, seconds = (
        np.concatenate([column[layers] for column in columns])
        for columns in (
            [row.counts("host_activations") for row in rows],
            [row.counts("host_distinct") for row in rows],
            [row.host_s for row in rows],
        )
    )
    done = (pairs > 0) & (seconds > 0)
    try:
        full = fit(pairs[done], distinct[done], seconds[done], fixed=True, relative=True)
        paper = fit(pairs[done], distinct[done], seconds[done], by_expert=False, relative=True)
    except InputError:  # There are too few measurements.
        return None
    return (full.fixed, full.per_expert, full.per_pair), paper.per_pair


def device_time(without: Sequence[Timed], whole: Sequence[Timed], layers: BoolArray) -> float | None:
    """Return the seconds of a distinct expert on the device.

    The experts of `layers` (bool [L]) are all resident in `whole`, and none is in `without`. Batches of
    `whole` take longer by the device's experts, and save the CPU's time in these layers. The result is the
    slope of the added time over the number of distinct experts. The intercept takes up the hand-off, which
    resident layers do not need. Return None where this number did not vary.
    """
    distinct = np.array([row.counts("device_distinct")[layers].sum() for row in whole])
    on_cpu = np.array([row.host_s[layers].sum() for row in without])
    longer = np.array([b.seconds - a.seconds for a, b in zip(without, whole, strict=True)]) + on_cpu
    spread = distinct - distinct.mean()
    if not spread.any():
        return None
    # The CPU's other layers differ a little between both sets. A weighted median of the slopes between pairs
    # of batches is robust against this.
    i, j = np.triu_indices(len(distinct), 1)
    apart = distinct[i] != distinct[j]
    slopes = (longer[i] - longer[j])[apart] / (distinct[i] - distinct[j])[apart]
    weights = np.abs(distinct[i] - distinct[j])[apart]
    order = np.argsort(slopes)
    middle = np.searchsorted(weights[order].cumsum(), weights.sum() / 2)
    return max(0.0, float(slopes[order][middle]))


def hand_off_time(
    without: Sequence[Timed], whole: Sequence[Timed], layers: BoolArray, device_expert_s: float
) -> float:
    """Return the seconds that a layer saves, beside its experts' time, when all of them are resident.

    This is the intercept of `device_time`, per layer. It is 0 where the CPU is waited for all the same.
    """
    spared = [
        a.seconds - b.seconds - float(a.host_s[layers].sum())
        + device_expert_s * float(b.counts("device_distinct")[layers].sum())
        for a, b in zip(without, whole, strict=True)
    ]  # fmt: skip
    return max(0.0, median(spared) / int(np.count_nonzero(layers)))


def line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return (base, slope) of times over amounts, neither below 0; few points give the slope alone."""
    if not points:
        return 0.0, 0.0
    amounts, seconds = np.array(points, np.float64).T
    if len(points) < 8 or not np.ptp(amounts):
        return 0.0, float(np.median(seconds / amounts))
    found = fit(amounts, np.zeros_like(amounts), seconds, by_expert=False, fixed=True, relative=True)
    return found.fixed, found.per_pair


def expert_costs(
    guess: ExpertCosts,
    cpu: tuple[tuple[float, float, float], float] | None,
    device: float | None,
    uploads: tuple[float, float] | None,
) -> ExpertCosts:
    """Return the measured costs, and the guess for those that could not be measured.

    `uploads` has the times of an upload: alone, and while both compute.
    """
    (layer, expert, pair), paper = cpu or (
        (guess.cpu_layer_s, guess.cpu_expert_s, guess.cpu_pair_s),
        guess.cpu_pair_only_s,
    )
    alone, busy = uploads or (guess.upload_s, guess.upload_busy_s)
    return ExpertCosts(
        cpu_layer_s=layer,
        cpu_expert_s=expert,
        cpu_pair_s=pair,
        cpu_pair_only_s=paper,
        device_expert_s=device if device is not None else guess.device_expert_s,
        upload_s=alone,
        upload_busy_s=busy,
    )

"""The estimator that corrects costs with the timings of every step while an engine runs.

A calibration may be wrong from the start, or become wrong: another program takes the memory's bandwidth, the
clock drops, slots fill. `robust` describes the correction.

The CPU's work is timed layer by layer. The device's work is not timed. `device_time` estimates it from the
CPU's waits, and the hand-off from the waits behind layers that need no CPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from spac.costs.device_time import DeviceTime, HandOffTime
from spac.costs.draft_time import DraftTime
from spac.costs.model import Costs, ExpertCosts, LayerSizes
from spac.costs.robust import LEAST, RobustFit, RobustTable
from spac.errors import InputError
from spac.machine.arrays import BoolArray

if TYPE_CHECKING:
    from spac import _core

LayerCosts = npt.NDArray[np.void]
"""Structured, [L]: host_ns, wait_ns, host_activations, host_distinct, device_activations, device_distinct,
loaded_distinct."""

_HIDDEN = 64.0
"""The guess of a device's time for an expert, divided by this, is the lower bound of the start value.

A time that is hidden behind the CPU was measured as 0.
"""
EAGER = 64
"""The number of first steps, which are all used. After them the learned costs are better than stored ones."""
_EVERY = 8  # later, one step of this many is used, because learning takes time


class _PoolTimes:
    """The CPU's time for the experts of one pool, in both forms of `ExpertCosts`."""

    def __init__(self, start: ExpertCosts, members: BoolArray) -> None:
        """Set the start values. `members` is a bool [L], true for the layers of the pool."""
        self.start, self.members = start, members
        self._layers = slice(None) if members.all() else np.flatnonzero(members)
        self._host = RobustFit((start.cpu_layer_s, start.cpu_expert_s, start.cpu_pair_s))
        self._paper = RobustFit((start.cpu_pair_only_s,))

    def observe_host(self, layers: LayerCosts) -> None:
        """Learn from a step's layer costs, [L], which include the layers of all pools."""
        work = layers[self._layers]
        pairs = work["host_activations"]
        total = int(pairs.sum())
        if total:
            seconds = float(work["host_ns"].sum()) * 1e-9
            self._host.observe(
                (int(np.count_nonzero(pairs)), int(work["host_distinct"].sum()), total), seconds
            )
            self._paper.observe((total,), seconds)

    def costs(self, device: float, upload: float) -> ExpertCosts:
        """Return the costs of the pool's experts.

        `device` has the device's seconds for an expert. `upload` is the ratio of transfer times to the start.
        """
        cpu_layer, cpu_expert, cpu_pair = self._host.units
        return ExpertCosts(
            cpu_layer_s=cpu_layer,
            cpu_expert_s=cpu_expert,
            cpu_pair_s=cpu_pair,
            cpu_pair_only_s=self._paper.units[0],
            device_expert_s=device,
            upload_s=self.start.upload_s * upload,
        )


class CostEstimator:
    """The costs of a running engine, for one caller at a time."""

    def __init__(self, start: Costs, layers: Sequence[LayerSizes], *, measured: bool = True) -> None:
        """Start from measured or guessed costs of a model with these layers.

        A guess of T_draft gives way to the first draft. Raise InputError if `start` has another number of
        pools.
        """
        of_layer = np.array([layer.pool for layer in layers], np.int32)
        if len(start.experts) != len(set(of_layer.tolist())):
            raise InputError(f"costs of {len(start.experts)} pools are not of this model")
        self._pools = [_PoolTimes(costs, of_layer == pool) for pool, costs in enumerate(start.experts)]
        sizes = {layer.pool: layer.expert_bytes for layer in layers}
        guesses = [ExpertCosts.guessed(sizes[pool]).device_expert_s for pool in range(len(sizes))]
        self._device = DeviceTime(
            [max(cost.device_expert_s, guess / _HIDDEN)
             for cost, guess in zip(start.experts, guesses, strict=True)],
            [pool.members for pool in self._pools],
        )  # fmt: skip
        uploads = sum(start.experts[layer.pool].upload_s for layer in layers)
        self._upload_byte_s = max(uploads, LEAST) / sum(layer.expert_bytes for layer in layers)
        self._start_draft = (start.draft_base_s, start.draft_token_s)
        self.draft_time = DraftTime(*self._start_draft) if measured else DraftTime()
        """T_draft, which the governor reads too."""
        self._verify = RobustTable(start.verify_s)
        self._dense = RobustTable(start.dense_s)
        self._wait = RobustTable([time / len(layers) for time in start.dense_s])
        self._upload = RobustFit((1.0,))  # ratio of transfer times to the start
        self._hand_off = HandOffTime(start.hand_off_s)
        self.steps = 0
        """The number of observed steps, with the skipped ones."""

    @property
    def costs(self) -> Costs:
        """The current costs."""
        draft = self.draft_time
        base, token = (draft.base_s, draft.token_s) if draft.known else self._start_draft
        verify = self._verify.times
        return Costs(
            experts=tuple(
                pool.costs(device, self._upload.units[0])
                for pool, device in zip(self._pools, self._device.units, strict=True)
            ),
            draft_base_s=base,
            draft_token_s=token,
            verify_s=verify,
            dense_s=tuple(map(min, self._dense.times, verify)),
            hand_off_s=self._hand_off.seconds(self._device.factor),
        )

    def observe(self, step: _core.Step, n_asked: int) -> None:
        """Learn from a step of one sequence. Of most steps after the first ones, learn only the draft.

        n_asked: the draft length that the step was asked for.
        """
        self.draft_time.observe(n_asked, step.n_drafted, step.draft_ns * 1e-9)
        self.steps += 1
        if self.steps > EAGER and self.steps % _EVERY:
            return
        layers, verify_s = step.layer_costs, (step.verify_ns + step.sample_ns) * 1e-9
        self._verify.observe(step.n_verified, verify_s)
        for pool in self._pools:
            pool.observe_host(layers)
        if n_bytes := step.upload_bytes:
            self._upload.observe((n_bytes * self._upload_byte_s,), step.upload_ns * 1e-9)
        self._observe_device(step.n_verified, layers, verify_s)

    def _observe_device(self, n: int, layers: LayerCosts, verify_s: float) -> None:
        """Learn the device's time, the time without experts and the hand-off from the CPU's waits.

        n: the tokens of the step. verify_s: the seconds of verification and sampling.
        """
        if layers["loaded_distinct"].any():
            return  # The waits have the link's time too.
        distinct = layers["device_distinct"].astype(np.float64)
        wait, host = layers["wait_ns"] * 1e-9, layers["host_ns"] * 1e-9
        rest = verify_s - float(host.sum())
        if not wait.any():
            self._device.observe_total(distinct, rest - self._dense[n])
            return
        # A layer counts if the CPU waited for its ids and for the next layer's ids.
        seen = (wait[:-1] > 0) & (wait[1:] > 0)
        if seen.any():
            usual = self._device.observe_waits(distinct[:-1], host[:-1], wait[1:], seen, self._wait[n])
            self._wait.observe(n, usual)
            device = self._device.seconds(distinct)
            late = np.maximum(device - host, 0.0)
            self._dense.observe(n, rest - float(late.sum()))
            self._hand_off.observe(wait, late, device / self._device.factor, usual)

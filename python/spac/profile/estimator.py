"""Keeps costs true while an engine runs: every step's timings correct them.

A calibration may be wrong from the start, or become wrong: another program takes the memory's bandwidth, the
clock drops, slots fill. See `robust` for how it is corrected.

What the CPU computes is timed layer by layer. What the device computes is not, but where it takes longer than
the CPU, the CPU's wait for the next layer shows it, and where it does not, its time has a bound. An estimate
within the bounds stays as it is: nothing depends on it until experts move.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from spac.costs import Costs, ExpertCosts, Layer
from spac.errors import InputError
from spac.profile.robust import SHARE, RobustFit, RobustTable

BoolArray = npt.NDArray[np.bool_]
FloatArray = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int32]
LayerCosts = npt.NDArray[np.void]
"""Structured, [L]: host_ns, wait_ns, host_activations, host_distinct, device_activations, device_distinct."""

_EAGER = 64  # first steps, each of which counts; later one of `_EVERY`, for learning takes time too
_EVERY = 4


@dataclass(frozen=True, slots=True)
class StepTimes:
    """What one step of an engine took."""

    n_drafted: int
    draft_s: float
    n_verified: int
    verify_s: float  # verification and sampling
    layers: LayerCosts  # [L]: `Step.layer_costs`
    upload_bytes: int = 0  # of experts copied to the device since the last step
    upload_s: float = 0.0  # the time of these copies


class _Pool:
    """The experts of one pool: both forms of the CPU's time, and the device's."""

    def __init__(self, start: ExpertCosts, members: BoolArray, share: float) -> None:
        """members: bool [L], the layers of the pool."""
        self.start, self.members = start, members
        self._layers = slice(None) if members.all() else np.flatnonzero(members)
        self._host = RobustFit((start.cpu_layer_s, start.cpu_expert_s, start.cpu_pair_s), share)
        self._paper = RobustFit((start.cpu_pair_only_s,), share)
        # Of an expert; of a wait, as a ratio to what is usual.
        self.device = RobustFit((start.device_expert_s, 1.0), share, joint=False)

    def observe_host(self, layers: LayerCosts) -> None:
        """layers: [L], of all pools."""
        work = layers[self._layers]
        pairs = work["host_activations"]
        total = int(pairs.sum())
        if total:
            seconds = float(work["host_ns"].sum()) * 1e-9
            self._host.observe(
                (int(np.count_nonzero(pairs)), int(work["host_distinct"].sum()), total), seconds
            )
            self._paper.observe((total,), seconds)

    def costs(self, upload: float) -> ExpertCosts:
        """upload: what transfers take, as a ratio to the start."""
        cpu_layer, cpu_expert, cpu_pair = self._host.units
        return ExpertCosts(
            cpu_layer_s=cpu_layer,
            cpu_expert_s=cpu_expert,
            cpu_pair_s=cpu_pair,
            cpu_pair_only_s=self._paper.units[0],
            device_expert_s=self.device.units[0],
            upload_s=self.start.upload_s * upload,
            upload_busy_s=self.start.upload_busy_s * upload,
        )


class CostEstimator:
    """The costs of a running engine. One caller at a time."""

    def __init__(self, start: Costs, layers: Sequence[Layer], share: float = SHARE) -> None:
        """start: what was measured or guessed, for a model of these layers. Raises InputError if it has
        another number of pools."""
        of_layer = np.array([layer.pool for layer in layers], np.int32)
        if len(start.experts) != len(set(of_layer.tolist())):
            raise InputError(f"costs of {len(start.experts)} pools are not of this model")
        self._pools = [_Pool(costs, of_layer == pool, share) for pool, costs in enumerate(start.experts)]
        uploads = sum(start.experts[layer.pool].upload_busy_s for layer in layers)
        self._upload_byte_s = max(uploads, 1e-12) / sum(layer.expert_bytes for layer in layers)
        self._draft = RobustFit((start.draft_base_s, start.draft_token_s), share)
        self._verify = RobustTable(start.verify_s, share)
        self._dense = RobustTable(start.dense_s, share)
        self._wait = RobustTable([time / len(layers) for time in start.dense_s], share)
        self._upload = RobustFit((1.0,), share)  # as a ratio to the start
        self.steps = 0
        """Steps observed."""

    def draft(self, n_tokens: int) -> float:
        """Seconds for a draft of `n_tokens`; 0 for none."""
        return self._draft.predict((1, n_tokens)) if n_tokens > 0 else 0.0

    def verify(self, n_tokens: int) -> float:
        """Seconds to verify a batch of `n_tokens` and sample from it."""
        return self._verify[n_tokens]

    @property
    def costs(self) -> Costs:
        """The costs as they are now."""
        base, token = self._draft.units
        verify = self._verify.times
        return Costs(
            experts=tuple(pool.costs(self._upload.units[0]) for pool in self._pools),
            draft_base_s=base,
            draft_token_s=token,
            verify_s=verify,
            dense_s=tuple(map(min, self._dense.times, verify)),
        )

    @staticmethod
    def skips(number: int) -> bool:
        """Whether `observe` only counts the step of this number, from 1."""
        return number > _EAGER and number % _EVERY != 0

    def observe(self, step: StepTimes) -> None:
        """Learn from a step."""
        self.steps += 1
        if self.skips(self.steps):
            return
        if step.n_drafted:
            self._draft.observe((1, step.n_drafted), step.draft_s)
        self._verify.observe(step.n_verified, step.verify_s)
        for pool in self._pools:
            pool.observe_host(step.layers)
        if step.upload_bytes:
            self._upload.observe((step.upload_bytes * self._upload_byte_s,), step.upload_s)
        self._observe_device(step)

    def _observe_device(self, step: StepTimes) -> None:
        """What the waits say of the device's time, and of the time without experts."""
        n = step.n_verified
        used, wait, host = (step.layers[name] for name in ("device_distinct", "wait_ns", "host_ns"))
        rest = step.verify_s - float(host.sum()) * 1e-9
        if not wait.any():
            self._share_out(rest - self._dense[n], used)
            return
        # A layer is seen from its own ids, which it waited for, to the next layer's.
        used, wait, host = used[:-1], wait * 1e-9, host[:-1] * 1e-9
        seen, after, usual = (wait[:-1] > 0) & (wait[1:] > 0), wait[1:], self._wait[n]
        idle, busy = seen & (used == 0), seen & (used > 0)
        slow = busy & (after > 2 * usual)
        if idle.any():
            self._wait.observe(n, float(np.median(after[idle])))
        if slow.any():
            # Of these layers, what grows with the device's experts is theirs; the rest is what a wait takes.
            self._learn(slow, used, host + after, usual)
            more = self._pools[0].device.units[1]
            if more > 2:
                self._wait.observe(n, more * usual)
        elif seen.any():
            self._wait.observe(n, float(np.median(after[seen])))
            self._dense.observe(n, rest)
            self._learn(busy, used, host + after)

    def _learn(self, which: BoolArray, used: Counts, seconds: FloatArray, wait: float | None = None) -> None:
        """What the device took for the layers in `which` [L-1], and a `wait` each; without one, at most."""
        for pool in self._pools:
            mine = which & pool.members[:-1]
            distinct, limit = int(used[mine].sum()), float(seconds[mine].sum())
            if wait is not None:
                pool.device.observe((distinct, np.count_nonzero(mine) * wait), limit)
            elif pool.device.predict((distinct, 0)) > limit:
                pool.device.observe((distinct, 0), limit)

    def _share_out(self, seconds: float, used: Counts) -> None:
        """The device's time for all layers, by what each pool was expected to take."""
        distinct = [int(used[pool.members].sum()) for pool in self._pools]
        expected = [pool.device.predict((n, 0)) for pool, n in zip(self._pools, distinct, strict=True)]
        for pool, n, part in zip(self._pools, distinct, expected, strict=True):
            if part > 0:
                pool.device.observe((n, 0), seconds * part / sum(expected))

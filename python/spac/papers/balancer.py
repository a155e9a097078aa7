"""MoE-SpAc's heterogeneous workload balancer (section 3.3, Eq. 7-12 and 37-39), for all layers at once.

For every layer, it finds the threshold τ in [1, K] that makes CPU and device finish together:

    min |T_cpu(τ) - T_gpu(τ)|                                                                     (9)
    T_cpu(τ) = r_c(τ) γk · T_cpu^u       r_c: share of the pairs (token, expert) left to the CPU  (7)
    T_gpu(τ) = r_g(τ) b · T_gpu^u        r_g: share of the step's distinct experts on the device  (8)
    T_io^u n(τ) <= max(T_cpu, T_gpu) + γ T_draft^u / L      uploads fit into the step's window    (10)
    n(τ) <= slots that are free for them                                                          (11)

r_c and r_g are learned per layer and threshold (`Averages`). They compare the demand of a step with the
utilities that the step began with. The paper leaves these points open:

- (11) counts a pool's free slots *and* its residents with s < τ, which an upload of s >= τ may evict. If only
  free slots counted, a full pool would make every τ with a missing hot expert infeasible.
- If no τ is feasible, τ = K. Of thresholds with equal objectives, the lower one is taken: it puts more of the
  layer on the device.
- T_total of (10) depends on τ, and learned ratios r may rise and fall with τ, so the objective may not be
  convex. `solve` evaluates all K thresholds. Eq. 39's four candidates contain the optimum where T_cpu - T_gpu
  rises with τ and the feasible set is a range.

`as_printed` is the paper's problem. It forbids a threshold unless *all* of its missing experts can be
uploaded. A full pool or a slow link drives τ up to K, and slots stay with experts that lost their demand long
ago. But the mechanism uploads the best experts first. Uploads stop where slots or time end, and nothing waits
for them. `best_first`, the default, models that: every threshold is allowed, and of each level the device
gets as many experts as slots and time allow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from spac.costs import ExpertCosts
from spac.machine.arrays import BoolArray, Float64Array, Int32Array

_WARM_UP = 8  # first steps, of which the averages are plain means
_SHARE = 0.05  # weight of a new step in the averages; about 20 steps count, because demand changes


class Levels:
    """The utility level of every expert, for sums over levels. It holds no reference to the utilities."""

    def __init__(self, utility: Int32Array, n_level: int) -> None:
        """Copy the levels. utility: int32 [L, N] in 0..K; n_level: K."""
        self.n_layer, self.n_level = utility.shape[0], n_level
        first = np.arange(0, self.n_layer * (n_level + 1), n_level + 1, dtype=np.int32)
        self._index = (utility + first[:, None]).ravel()

    def at_least(self, weights: npt.NDArray[np.generic] | None = None) -> Float64Array:
        """Return per layer the sum of `weights` over the experts of s >= 0..K, float64 [L, K+1].

        weights: [L, N]; None counts the experts.
        """
        flat = None if weights is None else weights.ravel()
        sums = np.bincount(self._index, flat, self.n_layer * (self.n_level + 1))
        return _from_the_top(sums.reshape(self.n_layer, -1).astype(np.float64, copy=False))


class Averages:
    """The means of r_c, r_g, the pairs γk and the distinct experts b of every layer."""

    def __init__(self, n_layer: int, n_level: int) -> None:
        """Start without observations."""
        self._steps = 0
        self._hot: Float64Array = np.zeros((2, n_layer, n_level))  # [2, L, K] 1 - r_c and r_g
        self._total: Float64Array = np.zeros((2, n_layer, 1))  # [2, L, 1] pairs and distinct experts

    def observe(self, levels: Levels, demand: Int32Array) -> None:
        """Add a step's demand, int32 [L, N], under the levels that were known before the step.

        A layer without demand has r_c = 1 and r_g = 0.
        """
        self._steps += 1
        share = 1 / self._steps if self._steps <= _WARM_UP else _SHARE
        sums = np.stack((levels.at_least(demand), levels.at_least(demand > 0)))
        total = sums[:, :, :1]
        self._hot += share * (sums[:, :, 1:] / np.maximum(total, 1.0) - self._hot)
        self._total += share * (total - self._total)

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """Return copies of the learned arrays, by name."""
        return {
            "shares": self._hot.copy(),
            "totals": self._total.copy(),
            "observed": np.array(self._steps, np.int64),
        }

    def restore(self, state: dict[str, npt.NDArray[Any]]) -> None:
        """Continue from the result of `state` of averages with the same shapes."""
        self._hot, self._total = state["shares"].copy(), state["totals"].copy()
        self._steps = max(0, int(state["observed"]))

    @property
    def total(self) -> Float64Array:
        """The pairs and the distinct experts of a step, float64 [2, L, 1]."""
        return self._total

    @property
    def hot(self) -> Float64Array:
        """The pairs and the distinct experts of a step at experts with s >= 1..K, float64 [2, L, K]."""
        return self._hot * self._total


@dataclass(frozen=True)
class Times:
    """The unit times of every layer, in seconds."""

    cpu: Float64Array  # [2, L, 1] per pair and per distinct expert
    gpu: Float64Array  # [L, 1] per distinct expert
    upload: Float64Array  # [L, 1] per expert
    draft_token: float
    cpu_layer: Float64Array | None = None  # [L, 1] per layer with anything on the CPU; None where it is 0

    @classmethod
    def of(cls, costs: Sequence[ExpertCosts], draft_token: float, *, by_expert: bool = True) -> Times:
        """Return the times of all layers. costs: of every layer's experts.

        by_expert=False uses a time per pair only (Eq. 7 as printed). A kernel that reads an expert's weights
        once for all tokens that want it also takes a time per distinct expert.
        """
        units = [
            (
                each.cpu_pair_s if by_expert else each.cpu_pair_only_s,
                each.cpu_expert_s if by_expert else 0.0,
                each.device_expert_s,
                each.upload_s,
                each.cpu_layer_s if by_expert else 0.0,
            )
            for each in costs
        ]
        columns = np.array(units, np.float64).reshape(-1, 5).T[:, :, None]
        return cls(columns[:2], columns[2], columns[3], draft_token, columns[4] if columns[4].any() else None)

    def spent(self, total: Float64Array, on_device: Float64Array) -> tuple[Float64Array, Float64Array]:
        """Return (T_cpu, T_gpu) (Eq. 7, 8), each float64 [L, K].

        total: [2, L, 1] and on_device: [2, L, K] have pairs and distinct experts.
        """
        on_cpu = total - on_device
        t_cpu = (self.cpu * on_cpu).sum(axis=0)
        if self.cpu_layer is not None:
            t_cpu += self.cpu_layer * np.clip(on_cpu[1], 0.0, 1.0)  # about the probability of any
        return t_cpu, self.gpu * on_device[1]

    def window(self, t_cpu: Float64Array, t_gpu: Float64Array, n_drafted: int) -> Float64Array:
        """Return T_total + γ T_draft / L in seconds, float64 [L, K].

        A layer's uploads may take this time (Eq. 10).
        """
        drafting = n_drafted * self.draft_token / max(1, len(self.upload))
        return np.maximum(t_cpu, t_gpu) + drafting


@dataclass(frozen=True)
class LevelSlots:
    """The place of every level's experts, and the slots that there are for them."""

    experts: Float64Array  # [L, K] experts with s >= 1..K
    held: Float64Array  # [L, K] those of them that are resident
    pools: Pools

    @classmethod
    def of(cls, levels: Levels, resident: BoolArray, pools: Pools, share: BoolArray | None = None) -> Self:
        """Return the numbers of all and of resident experts.

        resident: bool [L, N]; share: bool [L], the layers that share the pools' slots, by default all.
        """
        experts, held = levels.at_least()[:, 1:], levels.at_least(resident)[:, 1:]
        if share is None:
            return cls(experts, held, pools)
        return cls(experts * share[:, None], held * share[:, None], pools)


class Pools:
    """The layers that share slots, and the number of their slots."""

    def __init__(self, of_layer: Int32Array, n_slots: Int32Array) -> None:
        """Keep the pools. of_layer: int32 [L], the pool of every layer; n_slots: int32 [pool]."""
        self.of_layer = of_layer
        self.n_slots: Float64Array = n_slots[:, None].astype(np.float64)
        self._members = (of_layer == np.arange(len(n_slots))[:, None]).astype(np.float64)

    def sums(self, per_layer: Float64Array) -> Float64Array:
        """Return the sums of `per_layer` [L, K] over the layers of each pool, float64 [pool, K]."""
        return np.asarray(self._members @ per_layer)


@dataclass(frozen=True)
class Problem:
    """One instance of the problem for every layer. Entry k-1 is for τ = k."""

    t_cpu: Float64Array  # [L, K] seconds
    t_gpu: Float64Array  # [L, K] seconds
    feasible: BoolArray  # [L, K]


def as_printed(averages: Averages, slots: LevelSlots, times: Times, n_drafted: int) -> Problem:
    """Return the problem of Eq. 7-11 for the next step, after a draft of about `n_drafted` tokens (γ)."""
    t_cpu, t_gpu = times.spent(averages.total, averages.hot)
    uploads, pools = slots.experts - slots.held, slots.pools
    in_time = times.upload * uploads <= times.window(t_cpu, t_gpu, n_drafted)
    room = pools.n_slots - pools.sums(slots.held)
    return Problem(t_cpu, t_gpu, in_time & (uploads <= room[pools.of_layer]))


def best_first(averages: Averages, slots: LevelSlots, times: Times, n_drafted: int) -> Problem:
    """Return the problem in which uploads go from level K down.

    They stop at the last slot or at the end of the window.
    """
    experts, pools = _per_level(slots.experts), slots.pools
    in_pool = pools.sums(experts)
    above = _from_the_top(in_pool) - in_pool
    fit = np.minimum(np.maximum(pools.n_slots - above, 0.0) / np.maximum(in_pool, 1.0), 1.0)
    fitting = experts * fit[pools.of_layer]
    stays = np.minimum(_per_level(slots.held), fitting)
    uploads = fitting - stays

    hot = averages.hot
    window = times.window(*times.spent(averages.total, hot), n_drafted)
    in_time = np.minimum(window / np.maximum(times.upload * _from_the_top(uploads), 1e-15), 1.0)
    # From a level, the device gets the part that stays, and the share of the fitting part that comes in time.
    per_expert = _per_level(hot) / np.maximum(experts, 1.0)
    on_device = _from_the_top(per_expert * stays) + in_time * _from_the_top(per_expert * uploads)
    t_cpu, t_gpu = times.spent(averages.total, on_device)
    return Problem(t_cpu, t_gpu, np.ones(t_cpu.shape, np.bool_))


def _per_level(at_least: Float64Array) -> Float64Array:
    """Return the values of each level alone, float64 [..., K].

    `at_least` [..., K] has the sums of each level and those above.
    """
    result = at_least.copy()
    result[..., :-1] -= at_least[..., 1:]
    return result


def _from_the_top(per_level: Float64Array) -> Float64Array:
    """Return the inverse of `_per_level`, float64 [..., K]."""
    return per_level[..., ::-1].cumsum(axis=-1)[..., ::-1]


def solve(problem: Problem) -> Int32Array:
    """Return the feasible τ in [1, K] with the smallest objective, int32 [L].

    Of equal ones it is the lowest. If none is feasible it is K.
    """
    objective = np.where(problem.feasible, np.abs(problem.t_cpu - problem.t_gpu), np.inf)
    best = np.argmin(objective, axis=1)
    found = problem.feasible.any(axis=1)
    return np.asarray(np.where(found, best + 1, objective.shape[1]), np.int32)

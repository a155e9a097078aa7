"""The heterogeneous workload balancer of MoE-SpAc (section 3.3, Eq. 7-12; solution: Eq. 37-39), for all layers at once.

For every layer, the threshold τ in [1, K] that makes CPU and device finish together:

    min |T_cpu(τ) - T_gpu(τ)|                                                                       (9)
    T_cpu(τ) = r_c(τ) γk · T_cpu^u       r_c: share of the step's pairs (token, expert) left to the CPU   (7)
    T_gpu(τ) = r_g(τ) b · T_gpu^u        r_g: share of the step's distinct experts on the device          (8)
    T_io^u n(τ) <= max(T_cpu, T_gpu) + γ T_draft^u / L      uploads fit into the step's window           (10)
    n(τ) <= slots that are free for them                                                             (11)

r_c and r_g are learned per layer and threshold: `ratios` of the utilities that a step began with against its
demand, averaged by `Averages`. What the paper leaves open is defined here:

- (11) counts a pool's free slots *and* its residents with s < τ, which an upload of s >= τ may evict. Counting free
  slots alone, a full pool would make every τ with a missing hot expert infeasible.
- No feasible τ: τ = K. Of thresholds with equal objectives, the lower one: more of the layer on the device.
- T_total of (10) depends on τ and learned r's need not be monotone, so the objective need not be convex: `solve`
  evaluates all K thresholds. `solve_by_crossing` is Eq. 39's four candidates, for comparison: they contain the
  optimum where T_cpu - T_gpu rises with τ and the feasible set is a range.

`as_printed` is the paper's problem. It forbids a threshold unless *all* of its missing experts can be uploaded: a
full pool or a slow link drives τ up to K, and slots stay with experts that lost their demand long ago. But
uploads are made best first, they stop where room or time ends, and nothing waits for them. `best_first`, the
default, models that: no threshold is forbidden, and of each level the device gets what room and time allow.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from spac.scheduler.base import BoolArray, IntArray
from spac.scheduler.cost import UnitCosts

FloatArray = npt.NDArray[np.float64]


def by_level(levels: IntArray, weights: npt.NDArray[np.generic], n_level: int) -> FloatArray:
    """float64 [L, K]: per layer the sum of `weights` [L, N] over the experts whose level [L, N] is 1..K."""
    n_layer = levels.shape[0]
    index = levels + (np.arange(n_layer, dtype=np.int32) * (n_level + 1))[:, None]
    sums = np.bincount(index.ravel(), weights.ravel(), n_layer * (n_level + 1))
    return np.asarray(sums.reshape(n_layer, n_level + 1)[:, 1:])


def from_the_top(per_level: FloatArray) -> FloatArray:
    """float64 [..., K]: sums over the levels that are at least 1..K."""
    return np.asarray(np.cumsum(per_level[..., ::-1], axis=-1)[..., ::-1])


def ratios(utility: IntArray, demand: IntArray, n_level: int) -> tuple[FloatArray, FloatArray]:
    """(r_c, r_g), each float64 [L, K], of one step: what `utility`, known before it, would have made of its demand.

    utility, demand: int32 [L, N]. A layer without demand has r_c = 1 and r_g = 0.
    """
    used = demand > 0
    pairs, distinct = demand.sum(axis=1, keepdims=True), used.sum(axis=1, keepdims=True)
    r_c = 1.0 - from_the_top(by_level(utility, demand, n_level)) / np.maximum(pairs, 1)
    r_g = from_the_top(by_level(utility, used, n_level)) / np.maximum(distinct, 1)
    return r_c, r_g


class Averages:
    """Means of r_c, r_g, the pairs γk and the distinct experts b of every layer."""

    def __init__(self, n_layer: int, n_level: int, warm_up: int = 8, share: float = 0.05) -> None:
        """Plain means over the first `warm_up` steps, then each new step weighs `share`."""
        self._warm_up, self._share, self._steps = warm_up, share, 0
        self.r_c: FloatArray = np.ones((n_layer, n_level))
        self.r_g: FloatArray = np.zeros((n_layer, n_level))
        self.pairs: FloatArray = np.zeros((n_layer, 1))
        self.distinct: FloatArray = np.zeros((n_layer, 1))

    def observe(self, utility: IntArray, demand: IntArray) -> None:
        """utility: int32 [L, N] before the step; demand: int32 [L, N], the step's."""
        self._steps += 1
        share = 1 / self._steps if self._steps <= self._warm_up else self._share
        r_c, r_g = ratios(utility, demand, self.r_c.shape[1])
        self.r_c += share * (r_c - self.r_c)
        self.r_g += share * (r_g - self.r_g)
        self.pairs += share * (demand.sum(axis=1, keepdims=True) - self.pairs)
        self.distinct += share * ((demand > 0).sum(axis=1, keepdims=True) - self.distinct)


@dataclass(frozen=True)
class Times:
    """Unit costs of every layer, each float64 [L, 1], in seconds; see `UnitCosts`."""

    cpu_pair: FloatArray
    cpu_expert: FloatArray
    gpu_expert: FloatArray
    upload: FloatArray
    draft_token: float

    @classmethod
    def of(cls, costs: tuple[UnitCosts, ...]) -> Times:
        """costs: of every layer; all have the same draft model."""
        columns = (
            np.array([getattr(cost, name) for cost in costs], np.float64).reshape(-1, 1)
            for name in ("cpu_pair", "cpu_expert", "gpu_expert", "upload")
        )
        return cls(*columns, draft_token=costs[0].draft_token if costs else 0.0)

    def drafting(self, n_drafted: int) -> float:
        """γ T_draft / L: a layer's part of the drafting time, in seconds."""
        return n_drafted * self.draft_token / max(1, len(self.upload))


@dataclass(frozen=True)
class Slots:
    """Where the experts of every level are, and how many slots there are for them."""

    held: FloatArray  # [L, K] residents of each level
    missing: FloatArray  # [L, K] experts of each level that are not resident
    pools: IntArray  # [L] the pool of every layer
    pool_slots: IntArray  # [pool]

    @classmethod
    def of(
        cls, utility: IntArray, resident: BoolArray, n_level: int, pools: IntArray, pool_slots: IntArray
    ) -> Slots:
        """utility: int32 [L, N]; resident: bool [L, N]."""
        held, missing = by_level(utility, resident, n_level), by_level(utility, ~resident, n_level)
        return cls(held, missing, pools, pool_slots)

    def per_pool(self, per_layer: FloatArray) -> FloatArray:
        """float64 [pool, K]: sums over the layers of every pool."""
        sums = np.zeros((len(self.pool_slots), per_layer.shape[1]))
        np.add.at(sums, self.pools, per_layer)
        return sums


@dataclass(frozen=True)
class Problem:
    """One instance for every layer, entry k-1 for τ = k."""

    t_cpu: FloatArray  # [L, K] seconds
    t_gpu: FloatArray  # [L, K] seconds
    feasible: BoolArray  # [L, K]


def as_printed(averages: Averages, slots: Slots, times: Times, n_drafted: int) -> Problem:
    """Eq. 7-11 for the next step, after a draft of about `n_drafted` tokens (γ)."""
    t_cpu = (
        times.cpu_pair * averages.r_c * averages.pairs
        + times.cpu_expert * (1 - averages.r_g) * averages.distinct
    )
    t_gpu = times.gpu_expert * averages.r_g * averages.distinct
    uploads = from_the_top(slots.missing)
    window = np.maximum(t_cpu, t_gpu) + times.drafting(n_drafted)
    room = slots.pool_slots[:, None] - slots.per_pool(from_the_top(slots.held))
    return Problem(t_cpu, t_gpu, (times.upload * uploads <= window) & (uploads <= room[slots.pools]))


def best_first(averages: Averages, slots: Slots, times: Times, n_drafted: int) -> Problem:
    """The same where uploads go from level K down and stop at the last slot or at the end of the window."""
    experts = slots.held + slots.missing
    pool_experts = slots.per_pool(experts)
    above = from_the_top(pool_experts) - pool_experts
    fit = np.clip((slots.pool_slots[:, None] - above) / np.maximum(pool_experts, 1.0), 0.0, 1.0)
    stays = np.minimum(slots.held, experts * fit[slots.pools])
    uploads = experts * fit[slots.pools] - stays

    printed = as_printed(averages, slots, times, n_drafted)
    window = np.maximum(printed.t_cpu, printed.t_gpu) + times.drafting(n_drafted)
    needed = times.upload * from_the_top(uploads)
    in_time = np.minimum(1.0, window / np.maximum(needed, 1e-15))

    def on_device(per_threshold: FloatArray) -> FloatArray:
        """[L, K] what of a quantity, known for experts with s >= τ, the device gets."""
        per_expert = (per_threshold - np.pad(per_threshold[:, 1:], ((0, 0), (0, 1)))) / np.maximum(experts, 1.0)
        return from_the_top(per_expert * stays) + in_time * from_the_top(per_expert * uploads)

    pairs = on_device((1 - averages.r_c) * averages.pairs)
    distinct = on_device(averages.r_g * averages.distinct)
    t_cpu = times.cpu_pair * (averages.pairs - pairs) + times.cpu_expert * (averages.distinct - distinct)
    return Problem(t_cpu, times.gpu_expert * distinct, np.ones(experts.shape, np.bool_))


def solve(problem: Problem) -> IntArray:
    """int32 [L]: the feasible τ in [1, K] with the smallest objective, the lowest of equal ones; K if none is."""
    objective = np.where(problem.feasible, np.abs(problem.t_cpu - problem.t_gpu), np.inf)
    best = np.argmin(objective, axis=1)
    found = problem.feasible.any(axis=1)
    return np.where(found, best + 1, objective.shape[1]).astype(np.int32)


def solve_by_crossing(problem: Problem) -> IntArray:
    """int32 [L]: Eq. 39: the best of τ_min, τ_max and the two integers around the crossing of T_cpu and T_gpu.

    Its objective equals `solve`'s where T_cpu - T_gpu rises with τ and the feasible thresholds are a range.
    """
    difference = problem.t_cpu - problem.t_gpu
    n_layer, n_level = difference.shape
    chosen = np.full(n_layer, n_level, np.int32)
    for layer, feasible in enumerate(problem.feasible):
        allowed = np.flatnonzero(feasible) + 1
        if not len(allowed):
            continue
        crossed = int(np.searchsorted(difference[layer], 0.0)) + 1  # the first τ with T_cpu >= T_gpu
        candidates = {int(allowed[0]), int(allowed[-1]), crossed - 1, crossed} & set(allowed.tolist())
        chosen[layer] = min(sorted(candidates), key=lambda k, row=difference[layer]: abs(row[k - 1]))
    return chosen

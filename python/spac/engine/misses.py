"""Where a step's misses are computed: experts that the step uses and that are not resident.

The CPU computes them ("cpu"), or they are copied to the device within their layer ("load"), or the mechanism
divides each layer's misses between both by costs (csrc/core/miss_division.h). "auto" divides where measured
steps are faster with the division than without.
"""

from __future__ import annotations

from collections import defaultdict, deque
from statistics import median
from typing import TYPE_CHECKING

from spac.costs import Costs

if TYPE_CHECKING:
    from spac import _core
    from spac.costs.estimator import CostEstimator

_TRIAL = 5  # steps of a trial; the first one is left out, since it meets the slots of the other way
_KEPT = 12  # latest times for each way and batch size; their median counts
_NEEDED = 4  # times of a size before its ratio counts
_START = 48  # first steps, in which both ways take turns
_APART = 64  # steps between two trials of the slower way, at least
_TRIAL_COST = 0.01  # share of the time that trials may cost
_HYSTERESIS = 0.01  # a way has to be faster by this share to take over
_COSTS_EVERY = 16  # steps between two updates of the costs


class TwoWays:
    """A choice between two ways of doing steps, by their measured times. It begins with the first one.

    Steps of equal batch sizes are compared. The slower way is tried again for some steps now and then, and so
    seldom that trials cost at most a hundredth of the time.
    """

    def __init__(self) -> None:
        self.second = False
        """True while steps use the second way."""
        self._better = False  # the way between trials
        self._times: dict[int, tuple[deque[float], deque[float]]] = defaultdict(
            lambda: (deque(maxlen=_KEPT), deque(maxlen=_KEPT))
        )
        self._weights: dict[int, float] = defaultdict(float)  # share of the latest steps by batch size
        self._step = 0
        self._left = _TRIAL  # steps until this turn ends

    @property
    def ratio(self) -> float | None:
        """The time of the second way divided by that of the first one; None before both are known."""
        total = weight = 0.0
        for size, (first, second) in self._times.items():
            if min(len(first), len(second)) >= _NEEDED:
                weight += self._weights[size]
                total += self._weights[size] * median(second) / median(first)
        return total / weight if weight else None

    def observe(self, n_tokens: int, seconds: float) -> bool:
        """Learn from a step of `n_tokens`. Return True if the next step uses the other way."""
        self._step += 1
        for size in self._weights:
            self._weights[size] *= 1 - 1 / _APART
        self._weights[n_tokens] += 1 / _APART
        self._left -= 1
        if self._left != _TRIAL - 1:  # not the first step of a turn
            self._times[n_tokens][self.second].append(seconds)
        if self._left > 0:
            return False
        before, self.second = self.second, self._next()
        return before != self.second

    def _next(self) -> bool:
        """Return the way of the next turn, and set its length."""
        self._left = _TRIAL
        ratio = self.ratio
        if ratio is None or self._step < _START:
            return not self.second
        if self._better != self.second:  # A trial has ended.
            faster = 1 / ratio if self._better else ratio
            self._better ^= faster < 1 - _HYSTERESIS
            loss = abs(ratio - 1) if not self._better else abs(1 / ratio - 1)
            self._left = max(_APART, round(_TRIAL * loss / _TRIAL_COST))
            return self._better
        return not self._better


class Misses:
    """The setting of where a model's misses are computed, which "auto" changes between steps."""

    def __init__(self, experts: _core.Experts, wanted: str, *, by_recency: bool) -> None:
        """Apply `wanted`: "cpu", "load" or "auto". Slots are attached."""
        self._experts, self._wanted = experts, wanted
        self.by_recency = by_recency
        """True if the scheduler's plan goes by recency."""
        self.ways = TwoWays() if wanted == "auto" else None
        """The choice of "auto" between the CPU alone (first) and the division (second)."""
        self._step = 0
        # The division's slots are set aside before the scheduler's first plan.
        self._set("divide" if wanted == "auto" else wanted)

    def apply(self) -> None:
        """Apply this setting after another one was in force."""
        self._set(self._wanted if self.ways is None else "divide" if self.ways.second else "cpu")

    def _set(self, how: str) -> None:
        self._experts.set_miss(how, self.by_recency)

    def observe(self, step: _core.Step, estimator: CostEstimator) -> None:
        """Learn from a step, and set the way of the next one."""
        if self.ways is None:
            return
        if self._step % _COSTS_EVERY == 0:
            self._experts.set_miss_costs(unit_times(estimator.costs))
        if self._step == 0:
            self._set("cpu")
        elif self.ways.observe(step.n_verified, step.verify_ns * 1e-9):
            self._set("divide" if self.ways.second else "cpu")
        self._step += 1


def unit_times(costs: Costs) -> list[tuple[float, float, float, float, float, float]]:
    """Return each pool's costs in nanoseconds, in the order of `_core.experts_over_link`."""
    return [
        (
            pool.cpu_layer_s * 1e9, pool.cpu_expert_s * 1e9, pool.cpu_pair_s * 1e9,
            0.0, pool.upload_busy_s * 1e9, pool.device_expert_s * 1e9,
        )
        for pool in costs.experts
    ]  # fmt: skip

"""The gain in probability that is worth a copy, from what a copy costs.

The link and the CPU read experts from the same memory. A copy takes from the CPU, while the CPU computes, at
most the time in which the CPU reads an expert, and never more than the copy itself lasts:

    lost  = min(cpu_expert_s, upload_s) · busy · late
    busy  = the CPU's share of a verification's time: cpu / (cpu + dense_s)
    late  = 1 if a step has more copies than fit into its draft, during which the CPU is idle, else 0

An expert that is used on the device spares the CPU `saved` = cpu_expert_s + cpu_pair_s · (pairs per expert) -
device_expert_s. A copy that raises the chance of a use in the next step by g brings about `uses` · g uses
until it is evicted. So it pays from g = lost / saved / `uses` on, averaged over steps. That is the
margin.
Where copies are dear, experts stay for long, and what they bring after the next step counts too: `hold` is
its weight.

How many uses a copy brings is learned while text is generated (`Reuse`). A copy replaces the least probable
resident experts by the most probable absent ones. How long their order lasts depends on the text: where
routes change with every token, a gain of g brings about 1.5 g uses, and where they drift slowly, many times
as much. So every few steps the best absent and the worst resident experts are noted, and their uses in the
next steps are counted, whatever the slots hold by then:

    uses = Σ (uses of the absent - uses of the resident) / Σ (p of the absent - p of the resident)

The estimate is one standard error below that, because a copy too many costs more than one too few.

A link that carries fewer copies than are wanted needs no price: the best copies come first, and the others
are not made.
"""

from __future__ import annotations

import numpy as np

from spac.costs import Costs
from spac.machine.arrays import BoolArray, Float32Array, Float64Array, Int32Array
from spac.scheduler.base import StateArrays, View
from spac.scheduler.whole_layers import COSTS_EVERY

USES = 1.6
"""The least uses that a copy brings, per gain in the probability of the next step's.

Between margins of 0.2 and 0, a further copy brought 1.0 to 2.3 times the mean of the two margins on traces of
gpt-oss-20b, gpt-oss-120b and OLMoE (bench/README.md).
"""
UNKNOWN = 0.2
"""The margin without costs."""
_EVERY = 4  # steps between looks, because a look takes time; a divisor of COSTS_EVERY
_SHARE = 0.1  # share of a look in the averages
_MOST = 0.3
"""The largest margin. Above it, what is in the slots by accident stays there for too long."""
_USES = 8.0  # the most uses per gain; the steps over which they are counted
_HOLDS = 0.2  # the margin from which an expert's later uses count as much as the next step's
STEPS = 8
"""The steps over which uses are counted, and between two samples."""
_PAIRS = 32  # the most experts of each side in a sample
_LEAST_GAP = 0.02  # mean gap of a sample, below which it tells nothing
_KEEP = 1 - 1 / 32  # the part of the sums that a sample leaves
_PRIOR = 40.0  # weight of the first guess, in gaps


class Reuse:
    """Estimates the uses that a gain of 1 in the probability of the next step's use brings."""

    def __init__(self, guess: float, most: float) -> None:
        """Start with a guess, which is the least estimate too. most: the largest estimate."""
        self.uses = self._guess = guess
        self._most = most
        self._brought = self._gaps = self._squares = 0.0  # sums; the squares are of what the ratio leaves
        self._now = self._gap = 0.0  # of the running sample: uses so far, and the gap
        self._left = 0
        self._absent = self._resident = np.zeros(0, np.intp)

    def observe(self, demand: Int32Array, resident: BoolArray, probability: Float32Array) -> None:
        """Learn from a step.

        demand: int32 [L, N]. resident: bool [L, N], the experts in slots. probability: float32 [L, N], as it
        was predicted for the step.
        """
        if not self._left:
            self._sample(resident, probability)
        if not self._left:
            return
        self._now += float(
            np.count_nonzero(demand.ravel()[self._absent]) - np.count_nonzero(demand.ravel()[self._resident])
        )
        self._left -= 1
        if not self._left:
            self._brought = self._brought * _KEEP + self._now
            self._gaps = self._gaps * _KEEP + self._gap
            self._squares = self._squares * _KEEP + (self._now - self._mean * self._gap) ** 2
            self._estimate()

    def state(self) -> Float64Array:
        """Return the sums over samples, float64 [3]. The running sample is not in them."""
        return np.array([self._brought, self._gaps, self._squares])

    def restore(self, state: Float64Array) -> None:
        """Continue from the result of `state`, clipped to its valid range."""
        sums = np.clip(np.nan_to_num(state), (-1e9, 0.0, 0.0), 1e9)
        self._brought, self._gaps, self._squares = sums.tolist()
        self._left = 0
        self._estimate()

    @property
    def _mean(self) -> float:
        return (self._brought + _PRIOR * self._guess) / (self._gaps + _PRIOR)

    def _estimate(self) -> None:
        error = self._squares**0.5 / (self._gaps + _PRIOR)
        self.uses = min(max(self._mean - error, self._guess), self._most)

    def _sample(self, resident: BoolArray, probability: Float32Array) -> None:
        n = min(_PAIRS, int(resident.sum()), int(resident.size - resident.sum()))
        if n == 0:
            return
        absent = np.argpartition(np.where(resident, -1.0, probability), -n, axis=None)[-n:]
        kept = np.argpartition(np.where(resident, probability, 2.0), n - 1, axis=None)[:n]
        gap = float(probability.ravel()[absent].sum() - probability.ravel()[kept].sum())
        if gap < _LEAST_GAP * n:
            return
        self._now, self._gap = 0.0, gap
        self._absent, self._resident, self._left = absent, kept, STEPS


class CopyPrice:
    """The margin of a scheduler that compares probabilities."""

    def __init__(self, margin: float | str) -> None:
        """Take a fixed margin, or "auto" to follow the costs."""
        self._fixed = not isinstance(margin, str)
        self.margin = UNKNOWN if isinstance(margin, str) else float(margin)
        """The gain in the probability of the next step's use that is worth a copy."""
        self.hold = 0.0
        """The weight of an expert's recent uses beside its probability; 0 for a fixed margin."""
        self._steps = self._looks = 0
        self._before: BoolArray | None = None
        self._costs: Costs | None = None
        self._price = 0.0  # average of lost / saved
        self._reuse = Reuse(USES, _USES)

    def observe(self, view: View, probability: Float32Array) -> None:
        """Take a verified step into account. Fixed margins and views without costs change nothing.

        probability: float32 [L, N], as it was predicted for the step.
        """
        self._steps += 1
        if self._fixed or view.costs is None:
            return
        resident = view.slot_of >= 0
        self._reuse.observe(view.demand, resident, probability)
        if self._steps % _EVERY:
            return
        if self._before is not None:
            self._looks += 1
            share = max(1 / self._looks, _SHARE)
            came = np.count_nonzero(resident & ~self._before) / _EVERY
            self._price += share * (self._now(view, resident, came) - self._price)
            self._set()
        self._before = resident

    def state(self) -> StateArrays:
        """Return the learned averages: lost / saved, the number of looks, and what `Reuse` has counted."""
        return {"price": np.array([self._price, self._looks], np.float64), "reuse": self._reuse.state()}

    def restore(self, state: StateArrays) -> None:
        """Continue from the result of `state`. A fixed margin stays."""
        price, looks = np.clip(np.nan_to_num(state["price"]), 0.0, 1e9)
        self._price, self._looks = float(price), int(looks)
        self._reuse.restore(state["reuse"])
        if self._looks and not self._fixed:
            self._set()

    def _set(self) -> None:
        self.margin = min(_MOST, self._price / self._reuse.uses)
        self.hold = min(1.0, self.margin / _HOLDS)

    def _now(self, view: View, resident: BoolArray, copies: float) -> float:
        """Return lost / saved of the step, in uses. copies: the experts that came in a step."""
        assert view.costs is not None
        if self._costs is None or self._steps % COSTS_EVERY == 0:
            self._costs = view.costs.costs
        costs = self._costs
        missed = np.flatnonzero((view.demand > 0) & ~resident)
        layers = missed // view.n_expert
        distinct = np.bincount(layers, minlength=view.n_layer)
        pairs = np.bincount(layers, view.demand.ravel()[missed], view.n_layer)
        cpu = lost = saved = 0.0
        for layer, n_pair, n in zip(view.layers, pairs.tolist(), distinct.tolist(), strict=True):
            each = costs.experts[layer.pool]
            cpu += each.cpu_s(n_pair, n)
            lost += n * min(each.cpu_expert_s, each.upload_s)
            saved += n * (each.cpu_expert_s - each.device_expert_s) + n_pair * each.cpu_pair_s
        busy = cpu / (cpu + costs.dense(view.n_verified)) if cpu else 0.0
        copy_s = sum(costs.experts[layer.pool].upload_s for layer in view.layers) / view.n_layer
        in_draft = costs.draft(view.n_drafted) / copy_s if copy_s else float("inf")
        return busy * lost / saved if saved > 0 and copies > in_draft else 0.0

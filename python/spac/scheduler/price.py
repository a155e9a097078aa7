"""The gain in probability that is worth a copy, from what a copy costs.

The link and the CPU read experts from the same memory. A copy takes from the CPU, while the CPU computes, at
most the time in which the CPU reads an expert, and never more than the copy itself lasts:

    lost  = min(cpu_expert_s, upload_busy_s) · busy · late
    busy  = the CPU's share of a verification's time: cpu / (cpu + dense_s)
    late  = 1 if a step has more copies than fit into its draft, during which the CPU is idle, else 0

An expert that is used on the device spares the CPU `saved` = cpu_expert_s + cpu_pair_s · (pairs per expert) -
device_expert_s. A copy that raises the chance of a use in the next step by g brings about `uses` · g uses
until it is evicted (`reuse`). So it pays from g = lost / saved / `uses` on, averaged over steps. That is the
margin.
Where copies are dear, experts stay for long, and what they bring after the next step counts too: `hold` is
its weight.

A link that carries fewer copies than are wanted needs no price: the best copies come first, and the others
are not made.
"""

from __future__ import annotations

import numpy as np

from spac.costs import Costs
from spac.machine.arrays import BoolArray, Float64Array
from spac.scheduler.base import StateArrays, View
from spac.scheduler.reuse import Reuse
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

    def observe(self, view: View, probability: Float64Array) -> None:
        """Take a verified step into account. Fixed margins and views without costs change nothing.

        probability: float64 [L, N], as it was predicted for the step.
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
        missed = np.where(resident, 0, view.demand)
        pairs, distinct = missed.sum(axis=1), np.count_nonzero(missed, axis=1)
        cpu = lost = saved = 0.0
        for layer, n_pair, n in zip(view.layers, pairs.tolist(), distinct.tolist(), strict=True):
            each = costs.experts[layer.pool]
            cpu += each.cpu_s(n_pair, n)
            lost += n * min(each.cpu_expert_s, each.upload_busy_s)
            saved += n * (each.cpu_expert_s - each.device_expert_s) + n_pair * each.cpu_pair_s
        busy = cpu / (cpu + costs.dense(view.n_verified)) if cpu else 0.0
        copy_s = sum(costs.experts[layer.pool].upload_s for layer in view.layers) / view.n_layer
        in_draft = costs.draft(view.n_drafted) / copy_s if copy_s else float("inf")
        return busy * lost / saved if saved > 0 and copies > in_draft else 0.0

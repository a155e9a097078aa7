"""MoE-SpeQ's Amortization Roofline (section 3.2): the throughput of drafts of every length.

    Θ(k) = tokens(k) / T_cycle(k),    k* = argmax Θ(k) over [0, k_SLO]    (Eq. 2, 4, 5)
    tokens(k) = 1 + Σ_i Π_{j≤i} c_j p_j

p_j is the probability that the j-th drafted token is accepted, given that those before it were. The 1 is the
target's own token, which every verification yields. Eq. 2 leaves it out, so that k = 0 could never win. c_j
is the probability that a draft goes on to its j-th token, given that it came that far. A draft model may stop
when it is unsure, and an n-gram draft may find no match. With drafts that never stop early, c_j = 1.

    T_cycle(k) = T_draft(n) + T_verify(n + 1) + price · E_new(n + 1), as the mean over n ≤ k    (Eq. 3)

n is the number of tokens that were really drafted. E_new(b) is the number of distinct experts that a batch of
b tokens wants and the device does not hold. `price` is what the miss policy pays for one. Where the CPU
computes misses, nothing is fetched before the first layer, so Eq. 3's T_pcie,init has no counterpart.

The functions are pure functions of arrays: no clock, no device, no state.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from spac.machine.arrays import Float64Array


@dataclass(frozen=True)
class StepCosts:
    """The times of the parts of a step, in seconds; K is the longest draft."""

    draft_base: float
    """The time of a draft, however short. k = 0 does not pay it."""
    draft_token: float
    """The additional time of every drafted token."""
    verify: Float64Array
    """The time of verifying 1 … K + 1 tokens with all their experts resident, float64 [K + 1].

    It includes all other time that belongs neither to the draft nor to misses.
    """
    misses: Float64Array
    """E_new of 1 … K + 1 tokens in distinct (layer, expert), float64 [K + 1]."""
    price: float
    """The time of one miss."""


@dataclass(frozen=True)
class Curve:
    """Θ and its parts for the draft lengths k = 0 … K; all arrays are float64 [K + 1]."""

    tokens: Float64Array
    """The expected tokens of a step, the target's own included."""
    cycle: Float64Array
    """The expected seconds of a step."""
    longest: Float64Array
    """The seconds of the longest step that k may bring, wherever the draft stops; for the latency budget."""
    missed: Float64Array
    """The expected misses of a step."""
    compute: Float64Array
    """The seconds of `cycle` without those of misses. 1 / compute is Eq. 3's compute roof per token."""

    @property
    def theta(self) -> Float64Array:
        """Θ, tokens per second."""
        return self.tokens / self.cycle


def tokens(accept: Float64Array, go_on: Float64Array) -> Float64Array:
    """Return the expected tokens of a step for k = 0 … K, float64 [K + 1].

    accept: p, go_on: c, both [K].
    """
    result = np.ones(len(accept) + 1)
    result[1:] += (accept * go_on).cumprod().cumsum()
    return result


def curve(accept: Float64Array, go_on: Float64Array, costs: StepCosts) -> Curve:
    """Return the roofline's operating points.

    accept, go_on: float64 [K], p and c of the module's docstring.
    """
    n = len(accept)
    drafts = np.zeros(n + 1)
    drafts[1:] = costs.draft_base + costs.draft_token * np.arange(1, n + 1)
    missed_s = costs.price * costs.misses
    longest = drafts + costs.verify + missed_s
    without_draft = longest[0]
    longest[0] += costs.draft_base  # a draft may stop at once
    np.maximum.accumulate(longest, out=longest)
    longest[0] = without_draft
    if (go_on == 1).all():
        compute = drafts + costs.verify
        return Curve(tokens(accept, go_on), compute + missed_s, longest, costs.misses, compute)
    reach = np.asarray(go_on.cumprod(), np.float64)  # the probability that the draft has a j-th token
    drafts[1:] = costs.draft_base + costs.draft_token * reach.cumsum()
    missed, compute = _mean(costs.misses, reach), drafts + _mean(costs.verify, reach)
    return Curve(tokens(accept, go_on), compute + costs.price * missed, longest, missed, compute)


def _mean(of_batch: Float64Array, reach: Float64Array) -> Float64Array:
    """Return the mean of of_batch[n] over the drafted n ≤ k, float64 [K + 1].

    P(n ≥ j) = reach[j - 1] for j ≤ k.
    """
    result = of_batch.copy()
    result[1:] = of_batch[0] + (reach * (of_batch[1:] - of_batch[:-1])).cumsum()
    return result


def longest_within(curve: Curve, budget_s: float) -> int:
    """Return k_SLO: the longest draft such that it and every shorter one fit into the budget.

    It is 0 if none does.
    """
    over = np.flatnonzero(curve.longest > budget_s)
    return len(curve.longest) - 1 if not over.size else max(0, int(over[0]) - 1)


def best(theta: Float64Array, k_max: int, k_min: int = 0) -> int:
    """Return k*: argmax Θ over {0} ∪ [k_min, k_max], the shortest of equal ones (Eq. 4, 5)."""
    k_min = max(1, k_min)
    if k_max < k_min:
        return 0
    k = k_min + int(theta[k_min : k_max + 1].argmax())
    return k if theta[k] > theta[0] else 0

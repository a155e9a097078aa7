"""The choice of layers that keep all experts resident, where that pays. They need no hand-off to the CPU.

A layer with a single missing expert waits for the CPU in every step, even if the step does not want that
expert (csrc, `split_stream.h`). A whole layer never waits. So N slots can bring more in one layer than when
they are scattered over many layers. This is certain where routing is flat and all experts are worth the same.

Gains are counted in expected uses of experts. Each use spares c = `cpu_expert_s` + (pairs per expert) ·
`cpu_pair_s`. By becoming whole, layer l gains

    hand-off    h_l = (hand_off_s - device_expert_s · Σ_e p_e) / c, because the CPU's time no longer hides the
                device's
    brought     + Σ p of its experts that are missing, m_l of them
    displaced   - Σ p of the m_l least probable experts that its pool keeps scattered

A whole layer keeps the following, compared with N slots in its place, each with a probability of use of λ:

    h_l - Σ_e max(0, λ - p_e).

Probabilities are those that `logistic` predicted, multiplied by how often such predictions came true. There
are three such ratios: for the least probable experts that are kept, for all that are not kept, and for the
best of these. Both sums are computed every few steps with the demand that followed, and averaged. A layer
joins when its gain repays the copies within `_HORIZON` steps, with `_NEED` of the hand-off to spare. It
leaves when its loss exceeds the price of the copies. Then the averages begin anew. Where routing is local and
slots are few, scattered slots bring more, and no layer is whole.

Without costs no layer is whole. While the cost of the hand-off is unknown, one layer is made whole as a trial
if slots abound. The engine's measurements show the difference (`spac.costs.estimator`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from spac.machine.arrays import BoolArray, Float32Array, Float64Array, Int32Array, Int64Array
from spac.scheduler.base import UNIT, StateArrays, View

if TYPE_CHECKING:
    from spac.costs import Costs


EVERY = 4
"""The number of steps between looks, because a look takes time.

Models with two and four times as many experts as 48 × 128 have two and four times as many steps in between.
"""
COSTS_EVERY = 16
"""The number of steps between readings of the costs, a multiple of those between looks."""
_USUAL = 48 * 128  # experts
_LOOKS = 16  # looks that are averaged before anything changes, because single looks scatter
_SHARE = 0.05  # share of a look in the averages; about 20 looks count
_HORIZON = 1024.0  # steps in which copies are to be repaid, because demand changes
_NEED = 0.25  # share of the hand-off that a layer must gain to join, because expected gains are uncertain
_AT_ONCE = 4  # at most 1/4 of a pool changes at once: of its layers, and of its slots for a trial

_Rows = slice | npt.NDArray[np.intp]


class WholeLayers:
    """Chooses the layers that are to be whole, by a scheduler's probabilities of use and priorities."""

    def __init__(self, view: View) -> None:
        """Start with no whole layer. view: of START."""
        self._exists: BoolArray = view.exists
        self._pool = np.array([layer.pool for layer in view.layers], np.int32)
        self._pool_slots: Int32Array = view.pool_slots.astype(np.int32)
        self._n_expert = self._exists.sum(axis=1).astype(np.int64)
        n_pool = len(self._pool_slots)
        self.whole: npt.NDArray[np.uint8] = np.zeros(view.n_layer, np.uint8)
        """1 for layers that are to be whole, uint8 [L]. Changed in place."""
        self.slots_left: Int32Array = self._pool_slots.copy()
        """The slots of every pool that whole layers leave, int32 [P]. Changed in place."""
        self._gain: Float64Array = np.zeros(view.n_layer)  # average gains, in uses
        self._seen: Float64Array = np.zeros((n_pool, 3, 2))  # kept, others, best: predicted uses and uses
        self._looks: Int32Array = np.zeros((n_pool, 2), np.int32)  # looks ever, and since the last change
        self._costs: Costs | None = None
        self._steps = 0
        self._every = EVERY << min(2, max(0, (view.exists.size // _USUAL).bit_length() - 1))

    def observe(self, view: View, chance: Float32Array, priority: Int32Array | None) -> bool:
        """Take a step into account, and return True if layers have changed sides.

        chance: float32 [L, N], the probabilities that were predicted for the step. priority: int32 [L, N], of
        the plan with which the step began, which chose the experts of the layers that are not whole; None
        without a plan.
        """
        self._steps += 1
        if priority is None or view.costs is None or self._steps % self._every:
            return False
        if self._costs is None or self._steps % COSTS_EVERY == 0:
            known = self._costs is None or self._costs.hand_off_s is not None
            self._costs = view.costs.costs
            if not known and self._costs.hand_off_s is not None:
                self._looks[:, 1] = 0
        # Whole numbers, so that sums depend on no order.
        likely = np.rint(chance * UNIT).astype(np.int64)
        changed = [
            self._look(pool, self._costs, likely, priority, view) for pool in range(len(self._pool_slots))
        ]
        return any(changed)

    def state(self) -> StateArrays:
        """Return copies of the learned arrays."""
        return {"whole": self.whole.copy(), "whole_gain": self._gain.copy(), "whole_seen": self._seen.copy(),
                "whole_looks": self._looks.copy()}  # fmt: skip

    def restore(self, state: StateArrays) -> None:
        """Continue from the result of `state`. Layers are whole only as far as there are slots for them."""
        self._gain[:] = np.nan_to_num(state["whole_gain"])
        self._seen[:] = np.clip(np.nan_to_num(state["whole_seen"]), 0.0, 1e12)
        self._looks[:] = np.clip(state["whole_looks"], 0, 1 << 20)
        self.whole[:] = 0
        for layer in np.flatnonzero(state["whole"]):  # a state may name more layers than there are slots for
            self.whole[layer] = self._n_expert[layer] <= self._left(self._pool[layer])
        self._count_slots()

    def _left(self, pool: int) -> int:
        inside = (self._pool == pool) & (self.whole > 0)
        return int(self._pool_slots[pool]) - int(self._n_expert[inside].sum())

    def _count_slots(self) -> None:
        self.slots_left[:] = [self._left(pool) for pool in range(len(self.slots_left))]

    def _look(self, pool: int, costs: Costs, likely: Int64Array, priority: Int32Array, view: View) -> bool:
        of_pool = self._pool == pool
        mine: _Rows = slice(None) if of_pool.all() else np.flatnonzero(of_pool)  # A slice copies nothing.
        used = (view.demand[mine] > 0) & self._exists[mine]
        distinct = np.count_nonzero(used)
        if not distinct:
            return False
        unit, hand_off_s = costs.experts[pool], costs.hand_off_s
        each = unit.cpu_expert_s + unit.cpu_pair_s * (int(view.demand[mine].sum()) / distinct)
        if each <= 0:
            return False
        pool_view = _Pool.of(self, pool, np.flatnonzero(of_pool), likely[mine], priority[mine], used)
        self._looks[pool] += 1
        ratios = pool_view.ratios(max(1.0 / self._looks[pool, 0], _SHARE), self._seen[pool])
        hand_off, now = pool_view.gains(ratios, hand_off_s or 0.0, unit.device_expert_s, each)
        gain = self._gain[mine]
        gain += max(1.0 / self._looks[pool, 1], _SHARE) * (now - gain)
        self._gain[mine] = gain
        loading = pool_view.whole[:, None] & self._exists[mine] & (view.slot_of[mine] < 0)
        if self._looks[pool, 1] < _LOOKS or loading.any():
            return False
        price = unit.upload_s / (each * _HORIZON)
        if hand_off_s is None:
            changed = self._try_one(pool_view, gain)
        else:
            changed = self._leave(pool_view, gain, price) or self._join(
                pool_view, gain, price, hand_off, ratios[0]
            )
        if changed:
            self._looks[pool, 1] = 0
            self._count_slots()
        return changed

    def _try_one(self, pool: _Pool, gain: Float64Array) -> bool:
        """Make one layer whole as a trial, and return True if there is one.

        It is the layer that loses least. It stands between other layers, so that its effect can be
        distinguished.
        """
        if self.whole.any() or int(pool.n_expert.max()) * _AT_ONCE > pool.n_slots:
            return False
        inner = [i for i, layer in enumerate(pool.layers) if 0 < layer < len(self.whole) - 1]
        if inner:
            self.whole[pool.layers[max(inner, key=lambda i: gain[i])]] = 1
        return bool(inner)

    def _leave(self, pool: _Pool, gain: Float64Array, price: float) -> bool:
        """Let the layers of the least gain leave, and return True if any does.

        They do not leave all at once, because each that leaves makes slots worth less.
        """
        worst = [int(i) for i in np.argsort(gain, kind="stable") if pool.whole[i]]
        some = worst[: -(-len(worst) // _AT_ONCE)]
        leaving = [i for i in some if gain[i] < -(pool.n_expert[i] * price)]
        self.whole[pool.layers[leaving]] = 0
        return bool(leaving)

    def _join(
        self, pool: _Pool, gain: Float64Array, price: float, hand_off: Float64Array, ratio: float
    ) -> bool:
        """Let the layers of the highest gain join, and return True if any does.

        Each pays for the slots that the layers before it have left.
        """
        left, taken, joined = pool.n_slots, 0, 0
        for i in np.argsort(-gain, kind="stable"):
            missing = int(pool.missing[i])
            if pool.whole[i] or hand_off[i] <= 0:
                continue
            if pool.n_expert[i] > left or joined == -(-len(pool.layers) // _AT_ONCE):
                break
            more = pool.displaced(taken + missing) - pool.displaced(taken) - pool.displaced(missing)
            least = missing * price + _NEED * float(hand_off[i])
            if gain[i] - ratio * (more / UNIT) <= least:
                break
            self.whole[pool.layers[i]] = 1
            left, taken, joined = left - int(pool.n_expert[i]), taken + missing, joined + 1
        return joined > 0


@dataclass(frozen=True)
class _Pool:
    """One pool at one look. It has M layers, of which some are whole."""

    layers: npt.NDArray[np.intp]  # [M]
    n_expert: Int64Array  # [M]
    n_slots: int  # slots that whole layers leave
    whole: BoolArray  # [M]
    likely: Int64Array  # [M, N] probabilities in units of 1 / UNIT
    used: BoolArray  # [M, N]
    kept: BoolArray  # [M, N] of the layers that are not whole, the experts that have slots in the plan
    others: BoolArray  # [M, N] the other experts of those layers
    missing: Int64Array  # [M] the number of others in every layer
    sums: Int64Array  # [1 + kept] sums of `likely` over the 0, 1, … least likely kept experts
    uses: Int64Array  # [1 + kept] sums of `used` over the same experts

    @classmethod
    def of(
        cls, owner: WholeLayers, pool: int, layers: npt.NDArray[np.intp], likely: Int64Array,
        priority: Int32Array, used: BoolArray,
    ) -> _Pool:  # fmt: skip
        """Return the view of pool `pool` of `owner`, whose layers are `layers`."""
        whole = owner.whole[layers] > 0
        scattered = owner._exists[layers] & ~whole[:, None]
        n_slots = int(owner.slots_left[pool])
        kept = _largest(priority, scattered, n_slots)
        places = np.flatnonzero(kept)  # Masks of random bits take several times as long as indices.
        places = places[np.sort(likely.ravel()[places] * (1 << 32) + np.arange(places.size)) % (1 << 32)]
        sums, uses = (np.append(0, column.ravel()[places].cumsum()) for column in (likely, used))
        others = scattered & ~kept
        return cls(
            layers, owner._n_expert[layers], n_slots, whole, likely, used, kept, others,
            others.sum(axis=1), sums.astype(np.int64), uses.astype(np.int64),
        )  # fmt: skip

    def displaced(self, n: int) -> int:
        """Return the sum of `likely` over the `n` least likely kept experts."""
        return int(self.sums[min(n, len(self.sums) - 1)])

    @cached_property
    def best(self) -> BoolArray:
        """The most likely of the others, as many as the largest layer has experts; bool [M, N]."""
        return _largest(self.likely, self.others, int(self.n_expert.max()))

    @cached_property
    def of_others(self) -> Int64Array:
        """The sums of `likely` over the others of every layer, int64 [M]."""
        return np.asarray((self.likely * self.others).sum(axis=1))

    def ratios(self, share: float, seen: Float64Array) -> list[float]:
        """Return how often predictions come true, for three groups.

        These are the least likely experts that are kept, the others, and the best of these. share: a look's
        share of the averages. seen: float64 [3, 2], changed in place.
        """
        n_kept = len(self.sums) - 1
        least = min(n_kept, max(int(self.n_expert.max()), n_kept // 4))
        best = self.best
        now = [
            (self.sums[least], self.uses[least]),
            (self.of_others.sum(), np.count_nonzero(self.used & self.others)),
            (self.likely[best].sum(), np.count_nonzero(self.used & best)),
        ]
        found = []
        for row, (predicted, came) in zip(seen, now, strict=True):
            row[0] += share * (int(predicted) / UNIT - row[0])
            row[1] += share * (int(came) - row[1])
            found.append(min(max(float(row[1] / row[0]), 1 / 64), 64.0) if row[0] > 0 else 1.0)
        return found

    def gains(
        self, ratios: list[float], hand_off_s: float, device_expert_s: float, each: float
    ) -> tuple[Float64Array, Float64Array]:
        """Return two gains of every layer, float64 [M] each, in uses.

        The first is the gain of no hand-off, and the second is the gain of being whole.
        """
        saved = hand_off_s - device_expert_s * (self.likely.sum(axis=1) / UNIT)
        # Whole layers have no `others`, so they are brought nothing.
        brought = ratios[1] * (self.of_others / UNIT)
        lost = ratios[0] * (self.sums[np.minimum(self.missing, len(self.sums) - 1)] / UNIT)
        best, n_best = int(self.likely[self.best].sum()), int(self.best.sum())
        for i in np.flatnonzero(self.whole):
            n = int(self.n_expert[i])
            rate = ratios[2] * best / n_best if n_best else 0.0
            few = max(1, n // 4)
            if self.n_slots >= n and len(self.sums) > few:
                # Nothing new is worth more than the least that are kept.
                rate = min(rate, ratios[0] * self.displaced(few) / few)
            level = int(np.rint(rate / ratios[1]))
            lost[i] = ratios[1] * (int(np.maximum(level - self.likely[i, :n], 0).sum()) / UNIT)
        return saved / each, saved / each + brought - lost


def _largest(values: Int32Array | Int64Array, among: BoolArray, n: int) -> BoolArray:
    """Return the `n` largest values `among` those marked, bool of their shape; of equal ones, the first."""
    some = values.ravel()[np.flatnonzero(among)]
    if n <= 0 or not some.size:
        return np.zeros_like(among)
    if n >= some.size:
        return among
    least = np.partition(some, some.size - n)[some.size - n]
    largest = np.asarray(among & (values > least))
    ties = np.flatnonzero(among & (values == least))
    largest.ravel()[ties[: n - np.count_nonzero(largest)]] = True
    return largest

"""The Speculative Governor (MoE-SpeQ, section 3.2.3): the roofline's best draft length, at every step.

What the model needs is learnt from the steps themselves, so that the first run of a new model on a new
machine works; measured costs, where there are some, are the start. Three things make that safe:

*Probes.* What is not in force is not seen: at k = 0 no acceptance, at one k no other's time. So now and then
two steps are spent on the length that promises most for what it costs, judged optimistically: by how few and
how old the observations are (`probes`).

*Robust times.* Medians, a common speed of the machine (`times.Speed`), and no weight for the first step after
a change of length, whose graphs are built anew, unless that costs next to nothing. What a change costs is
part of the model: a length that is hardly better is not worth it.

*Little time of its own.* A step's observation is a few scalars. The decision itself is made when the steps
since the last one took `_PATIENCE` times as long: at every step of a large model, at some of a tiny one.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from time import perf_counter
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from spac.costs import Costs as MeasuredCosts
from spac.errors import InputError
from spac.governor import probes
from spac.governor.acceptance import Rate, fast_rate, optimistic
from spac.governor.base import Governor
from spac.governor.model import (
    BoolArray,
    Costs,
    Curve,
    FloatArray,
    best,
    curve,
    fast_curve,
    longest_within,
    tokens,
)
from spac.governor.times import Line, Misses, SizeTimes, Speed, fast_size_times

_PATIENCE = 150.0
_DWELL = 16.0  # steps that a length is expected to stay in force
_LOOK_S = 0.03  # time between looks at residency, and at the experts that a step wanted


class RooflineGovernor(Governor):
    """k* = argmax Θ(k), k in [0, k_SLO], see `model`."""

    name = "roofline"
    allow_fast: ClassVar[bool] = True
    """False: Python and numpy throughout, to compare with."""

    def __init__(
        self,
        longest: int,
        *,
        shortest: int = 0,
        budget_s: float | None = None,
        costs: MeasuredCosts | None = None,
        resident: Callable[[], BoolArray] | None = None,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        """longest: K, at least 1. shortest: a shorter draft is not used, but none may be. budget_s: what no
        step is to exceed, nor prompt and first step together, as far as the draft length can see to it.
        costs: the start. resident: gives bool [L, N], for E_new; without it, misses are part of the
        verification's time.
        """
        if longest < 1:
            raise InputError(f"a governor chooses draft lengths up to at least 1, not {longest}")
        self.longest, self._shortest, self._budget_s = longest, max(1, shortest), budget_s
        self._resident, self._clock = resident, clock
        fast = self.allow_fast
        rate, self._solve = (fast_rate, fast_curve) if fast else (Rate, curve)
        self._accept, self._go_on = rate(longest, 0.7), rate(longest, 1.0)
        self._times = fast_size_times(longest + 1) if fast else SizeTimes(longest + 1)
        self._speed, self._misses = Speed(), Misses(longest + 1, fast=fast)
        self._line = Line()
        self._price = 0.0
        self._splits = False  # whether the times are without the misses
        self._no_misses: FloatArray = np.zeros(longest + 1)
        self._extras: deque[float] = deque(maxlen=9)  # what first steps after a change of length took beside
        self._change_s = 0.0  # their median, at a speed of 1
        self._probes = probes.Probes()
        self._climb, self._climbing = _doubling(self._shortest, longest), True  # the first lengths to be seen
        self._halvings = 2 * longest.bit_length()  # looks between them, next to the best, at most
        if costs is not None:
            self._start(costs)
        self._step = 0
        self._k = self._chosen = self._last = 0  # in force; for the next step; of the last one
        self._queue = [0, 0]  # lengths of the next steps, whatever is in force
        self._probing = False
        self._offered = [0] * (longest + 1)  # the step in which a draft last had this length
        self._left_s = math.inf  # of the latency budget, for the first step of a generation
        self._plain: list[float] = []  # times of the last steps, all without draft
        self._time_s = 0.0  # of all steps so far
        self._since_s, self._own_s = 0.0, 0.0  # time of the steps since the last decision; of a decision
        self._refreshed_s = self._next_look_s = 0.0
        self.curve: Curve | None = None
        """The model, as of the last decision, in seconds at a speed of 1 (`speed`)."""
        self._cycle = self._verify = self._tokens = [0.0] * (longest + 1)

    def _start(self, costs: MeasuredCosts) -> None:
        """Begin with what was measured."""
        self._times.start(np.array(costs.verify_s))
        self._line = Line(costs.draft_base_s, costs.draft_token_s)

    @property
    def in_force(self) -> int:
        """k*, as of the last decision; a probe may be under way instead."""
        return self._k

    @property
    def speed(self) -> float:
        """How much slower the machine is now than in the curve's units."""
        return self._speed.factor

    @property
    def decision_s(self) -> float:
        """Seconds that a decision takes, by the last ones."""
        return self._own_s

    @property
    def price(self) -> float:
        """Seconds of one miss, at a speed of 1."""
        return self._price

    @property
    def expected(self) -> tuple[float, float] | None:
        if self.curve is None:
            return None
        return self._tokens[self._last], self._cycle[self._last] * self._speed.factor

    # What steps show

    def begin(self, spent_s: float) -> None:
        self._left_s = math.inf if self._budget_s is None else self._budget_s - spent_s

    @property
    def wants_experts(self) -> bool:
        # Not at every step of a model so small that counting would take a share of it.
        return self._resident is not None and self._time_s >= self._next_look_s

    def demand(self, counts: npt.NDArray[np.int32], n_verified: int) -> None:
        self._misses.add(counts, n_verified)

    def observe(
        self,
        n_drafted: int,
        n_accepted: int,
        draft_s: float,
        step_s: float,
        misses: int = -1,
        miss_s: float = 0.0,
    ) -> None:
        k, n = self._chosen, n_drafted
        self._step += 1
        self._time_s += step_s
        self._since_s += step_s
        self._left_s = math.inf
        if k == self._last == self._k == 0 and misses < 0 and self.curve is not None:
            self._plain.append(step_s)
            return
        self._catch_up()
        speed = self._speed.factor
        changed, self._last = k != self._last, k
        self._learn_acceptance(k, n, n_accepted)
        if self.curve is not None:
            self._compare(k, n, n_accepted + 1, changed, draft_s, step_s)
        if misses >= 0:
            self._learn_misses(n + 1, misses, miss_s / speed)
        passing = changed and self._change_matters
        known = self._price * float(self._misses.expected[n]) if self._splits else 0.0
        self._times.add(n + 1, (step_s - draft_s) / speed - known, self._step, passing=passing, speed=speed)
        if k and not passing:
            self._line.add(n, draft_s / speed)

    def _catch_up(self) -> None:
        """Learn from the steps without draft that have gathered: they are many, short, and alike."""
        n = len(self._plain)
        if not n:
            return
        usual = sorted(self._plain)[(n - 1) // 2]
        self._accept.age(n)
        self._speed.observe(usual, self._verify[0], n)
        known = self._price * float(self._misses.expected[0]) if self._splits else 0.0
        self._times.add(1, usual / self._speed.factor - known, self._step, speed=self._speed.factor)
        self._probes.earn(sum(self._plain), self._cycle[0] * self._speed.factor)
        self._plain.clear()

    def _learn_acceptance(self, k: int, n: int, n_accepted: int) -> None:
        if k == 0:
            self._accept.age()
            return
        self._offered[n] = self._step
        surprised = self._accept.observe(n_accepted, n_accepted < n)
        if self._go_on.observe(n, n < k) or surprised:
            self._probes.hurry(self._step)

    def _learn_misses(self, size: int, misses: int, seconds: float) -> None:
        self._next_look_s = self._time_s + _LOOK_S
        self._misses.calibrate(size, misses)
        if misses:
            self._price += (seconds / misses - self._price) * (0.05 if self._price else 1.0)

    def _compare(self, k: int, n: int, n_tokens: int, changed: bool, draft_s: float, step_s: float) -> None:
        """Set a step against what was expected of it: the machine's speed, the cost of a change, the budget.

        A probe costs what it took beyond the time in which the present best makes as many tokens. Spikes of
        the machine are not its fault; a draft model that first has to catch up with the text is.
        """
        speed = self._speed.factor
        drafting = (self._line.base + self._line.slope * n) * speed if k else 0.0
        expected = self._verify[n] * speed + drafting
        if changed:
            self._extras.append((step_s - max(0.0, draft_s - drafting) - expected) / speed)
            self._change_s = max(0.0, sorted(self._extras)[len(self._extras) // 2])
        else:
            self._speed.observe(step_s, expected)
        if not self._climbing:
            self._probes.earn(step_s, self._cycle[self._k] * speed)
        if self._climbing:
            return
        if self._probing:
            catching_up = min(max(0.0, draft_s - drafting), expected)
            took = min(step_s, expected + self._change_s * changed * speed + catching_up)
            self._probes.pay(took - n_tokens * self._cycle[self._k] / self._tokens[self._k] * speed)
        elif changed:
            self._probes.pay(self._change_s * speed)  # the way back

    # What follows

    def choose(self, room: int) -> int:
        if not self._queue and (
            self._climb or self._since_s >= _PATIENCE * self._own_s or self._k != self._last
        ):
            self._decide()
        k = self._queue.pop() if self._queue else self._k
        self._probing = k != self._k
        if self._left_s < math.inf:
            k = min(k, self._fitting(self._left_s))
        k = min(k, room)
        self._chosen = k if k >= self._shortest else 0
        return self._chosen

    def _decide(self) -> None:
        """Solve the model anew; what it says holds until the next decision."""
        started = self._clock()
        self._catch_up()
        if self._resident is not None and self._time_s - self._refreshed_s >= _LOOK_S:
            self._refresh(self._resident())
        rates, trials = self._accept.estimate()
        go_on = self._go_on.estimate()[0]
        self.curve = now = self._solve(rates, go_on, self._costs())
        self._tokens, self._cycle = now.tokens.tolist(), now.cycle.tolist()
        k_max = self.longest if self._budget_s is None else self._fitting(self._budget_s)
        theta = now.tokens / self._with_changes(now.cycle)
        self._k = best(theta, k_max, self._shortest)
        self._queue = []
        self._climbing = bool(self._climb or self._halvings)
        if self._climbing or self._probes.due(self._step):
            probe = self._next_probe(now, rates, trials, go_on, k_max)
            self._queue = [probe] * probes.STEPS if probe is not None else []
        self._since_s = 0.0
        took = self._clock() - started
        self._own_s += ((took - self._own_s) * 0.2) if self._own_s else took

    def _refresh(self, resident: BoolArray) -> None:
        """Look at what is resident; from the first time on, verifications are without their misses."""
        self._refreshed_s = self._time_s
        self._misses.refresh(resident)
        if not self._splits and self._price and self._misses.expected.any():
            self._splits = True
            self._times.shift(-self._price * self._misses.expected)

    def _costs(self) -> Costs:
        misses = self._misses.expected if self._splits else self._no_misses
        missed_s = self._price * misses
        total = np.maximum(self._times.estimate(missed_s) + missed_s, 1e-9)
        self._verify = total.tolist()
        return Costs(self._line.base, self._line.slope, total - missed_s, misses, self._price)

    def _with_changes(self, cycle: FloatArray) -> FloatArray:
        """float64 [K + 1]: `cycle`, with what a change of length costs per step, over the steps it lasts."""
        if not self._change_matters:
            return cycle
        cost = np.full(len(cycle), self._change_s / _DWELL)
        cost[self._k] = 0.0
        return np.asarray(cycle + cost)

    @property
    def _change_matters(self) -> bool:
        return self._change_s > 0.05 * self._cycle[self._k]

    def _fitting(self, budget_s: float) -> int:
        return longest_within(self.curve, budget_s / self._speed.factor) if self.curve is not None else 0

    def _next_probe(
        self, now: Curve, rates: FloatArray, trials: FloatArray, go_on: FloatArray, k_max: int
    ) -> int | None:
        """The first lengths while they promise anything, then those around the best, then `Probes.pick`."""
        offered = np.maximum.accumulate(np.array(self._offered[:0:-1], np.float64))[::-1]
        hope = 1 - np.exp((offered - self._step) / 24)
        certain = now.tokens / now.cycle
        reach = tokens(optimistic(rates, trials, hope * (not self._climb)), np.maximum(go_on, hope))
        doubt = self._times.doubt(np.array(self._verify), self._step, self._speed.factor)
        promise = reach / (now.cycle * (1 - doubt))
        if self._climb:
            k = self._climb.pop(0)
            if k <= k_max and promise[k:].max() > certain[self._k]:
                return k
            self._climb = []
        if self._halvings:
            middle = self._between_seen(promise > certain[self._k], k_max)
            self._halvings = self._halvings - 1 if middle is not None else 0
            return middle
        allowed = np.zeros(len(certain), np.bool_)
        allowed[self._shortest : k_max + 1] = allowed[0] = True
        loss = probes.STEPS * now.cycle * (1 - certain / certain[self._k]) + 2 * self._change_s
        return self._probes.pick(self._step, self._k, allowed, promise / certain[self._k], loss * self.speed)

    def _between_seen(self, promising: BoolArray, k_max: int) -> int | None:
        """A promising length halfway between the best and its next seen neighbour, if there is one."""
        k, seen = self._k, [k for k in range(k_max + 1) if self._times.has(k + 1)]
        above, below = [j for j in seen if j > k][:1], [j for j in seen if j < k][-1:]
        for neighbour in above + below:
            middle = (k + neighbour) // 2
            if middle not in (k, neighbour) and middle >= self._shortest and promising[middle]:
                return middle
        return None


def _doubling(first: int, last: int) -> list[int]:
    lengths = []
    while first < last:
        lengths.append(first)
        first *= 2
    return [*lengths, last]

"""The Speculative Governor (MoE-SpeQ, section 3.2.3): the roofline's best draft length, at every step.

The governor learns what the model needs from the steps themselves, so the first run of a new model on a new
machine works. It starts from measured costs, where there are some. Three things make that safe:

*Probes.* Lengths that are not in force yield no observations: k = 0 shows no acceptance, and one k shows no
other's time. So now and then a step is spent on the length that promises most for its cost, or two where a
change of length costs time. The promise is optimistic: it is higher where observations are few or old
(`probes`). The first `_FIRST` steps have no budget: each has the length that is best by both, what it has
shown and what it promises.

*Robust times.* Times are medians, and the machine has a common speed (`times.MachineSpeed`). The first step
after a change of length builds its graphs anew, so it has no weight, unless that costs next to nothing. The
cost of a change is part of the model: a length that is hardly better is not worth it.

*Little time of its own.* A step's observation is a few scalars. A decision is made when the steps since the
last decision took `_PATIENCE` times as long as a decision. That is at every step of a large model, and at
some steps of a tiny one.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from time import perf_counter

import numpy as np

from spac.costs import Costs
from spac.costs.draft_time import DraftTime
from spac.errors import InputError
from spac.governor import probes
from spac.governor.acceptance import Rate, optimistic
from spac.governor.base import Governor
from spac.governor.model import Curve, StepCosts, best, curve, longest_within, tokens
from spac.governor.times import KEPT, MachineSpeed, Misses, SizeTimes
from spac.machine.arrays import BoolArray, Float64Array, Int32Array

_PATIENCE = 150.0  # ratio of the time between decisions to that of a decision, which thus takes below 1 %
_DWELL = 16.0  # steps that a length is expected to stay in force, over which the cost of a change is spread
_FIRST = 32  # first steps, in which the budget of probes does not count
_LOOK_S = 0.03  # seconds between looks at residency and at the experts that a step wanted; looks take time


class RooflineGovernor(Governor):
    """Chooses k* = argmax Θ(k), k in [0, k_SLO]; see `model`."""

    name = "roofline"

    def __init__(
        self,
        longest: int,
        *,
        shortest: int = 0,
        budget_s: float | None = None,
        costs: Costs | None = None,
        draft_time: DraftTime | None = None,
        resident: Callable[[], BoolArray] | None = None,
        foreseen: Callable[[], Float64Array | None] | None = None,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        """Set the limits and the sources of information.

        longest: K, at least 1. shortest: no draft is shorter, except that a step may have none. budget_s:
        target for the longest step in seconds, and for prompt and first step together; the draft length is
        limited to meet it. costs: the start. draft_time: T_draft, which other code learns; without it, the
        governor learns T_draft. resident: returns bool [L, N], for E_new; without it, misses are part of the
        verification's time. foreseen: returns the misses that the last draft predicted for windows of 1 … T
        tokens, float64 [T], the paper's E_new, or None. clock: returns seconds. Raise InputError if longest
        is below 1.
        """
        if longest < 1:
            raise InputError(f"a governor chooses draft lengths up to at least 1, not {longest}")
        self.longest, self._shortest, self._budget_s = longest, max(1, shortest), budget_s
        self._resident, self._foreseen, self._clock = resident, foreseen, clock
        self._accept, self._go_on = Rate(longest, 0.7), Rate(longest, 1.0)
        self._times = SizeTimes(longest + 1)
        self._speed, self._misses = MachineSpeed(), Misses(longest + 1)
        self._learns_draft = draft_time is None
        self._draft = draft_time if draft_time is not None else DraftTime()
        self._price = 0.0
        self._splits = False  # True if the times are without the misses
        self._no_misses: Float64Array = np.zeros(longest + 1)
        # Additional seconds of first steps after a change of length.
        self._extras: deque[float] = deque(maxlen=KEPT)
        self._change_s = 0.0  # their median, at a speed of 1
        self._probes = probes.Probes()
        if costs is not None:
            self._times.start(np.array(costs.verify_s))
            if self._learns_draft:
                self._draft = DraftTime(costs.draft_base_s, costs.draft_token_s)
        self._step = 0
        self._k = self._chosen = self._last = 0  # lengths: in force, for the next step, of the last one
        self._changed = False  # True if the last step had another length than the one before
        self._queue = [0]  # lengths of the next steps, which come before the one in force
        self._probing = False
        self._offered = [0] * (longest + 1)  # per length, the last step in which a draft had it
        # Seconds of the latency budget that are left for the first step of a generation.
        self._left_s = math.inf
        self._plain: list[float] = []  # times of the last steps that had no draft
        self._time_s = 0.0  # time of all steps so far
        self._since_s, self._own_s = 0.0, 0.0  # time of the steps since the last decision; of a decision
        self._refreshed_s = self._next_look_s = 0.0
        self.curve: Curve | None = None
        """The model as of the last decision, in seconds at a speed of 1 (`times.MachineSpeed`)."""
        self._cycle = self._verify = self._tokens = [0.0] * (longest + 1)

    @property
    def plain_s(self) -> float:
        """The expected seconds of a step without a draft; 0 before the first decision."""
        return self._cycle[0] * self._speed.factor

    @property
    def expected(self) -> tuple[float, float] | None:
        """The expected (tokens, seconds) of the last step; None before the first decision."""
        if self.curve is None:
            return None
        return self._tokens[self._last], self._cycle[self._last] * self._speed.factor

    @property
    def about(self) -> dict[str, float]:
        """The steps so far, the length in force, its speed, and the share of first drafts accepted.

        The speed is in tokens per second. The dictionary is empty before the first decision.
        """
        if self.curve is None:
            return {}
        acceptance = round(float(self._accept.estimate()[0][0]), 3)
        speed = round(self._tokens[self._k] / (self._cycle[self._k] * self._speed.factor), 3)
        return {"steps": self._step, "draft_length": self._k, "acceptance": acceptance,
                "tokens_per_second": speed}  # fmt: skip

    # Observations

    def begin(self, spent_s: float) -> None:
        """Record the budget that the prompt has left for the first step."""
        self._left_s = math.inf if self._budget_s is None else self._budget_s - spent_s

    @property
    def wants_experts(self) -> bool:
        """True if residency is known and the next look is due."""
        # Counting takes a noticeable share of a small model's step, so it is not done at every step.
        return self._resident is not None and self._time_s >= self._next_look_s

    def demand(self, counts: Int32Array, n_verified: int) -> None:
        """Add the step's demand to the estimate of misses."""
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
        """Learn from a step: acceptance, misses, times and the machine's speed.

        Steps without draft are gathered, and learned from later.
        """
        k, n = self._chosen, n_drafted
        if self._learns_draft:
            self._draft.observe(k, n, draft_s)
        if k == 0:
            draft_s = 0.0  # the draft model has read the step's token, which it does at every length
        self._step += 1
        self._time_s += step_s
        self._since_s += step_s
        self._left_s = math.inf
        if k == self._last == self._k == 0 and misses < 0 and self.curve is not None:
            self._plain.append(step_s)
            return
        self._catch_up()
        speed = self._speed.factor
        self._changed, self._last = k != self._last, k
        self._learn_acceptance(k, n, n_accepted)
        if self.curve is not None:
            self._compare(k, n, n_accepted + 1, draft_s, step_s)
        if misses >= 0:
            self._learn_misses(n + 1, misses, miss_s / speed)
        if k and self._foreseen is not None and (window := self._foreseen()) is not None:
            self._misses.foresee(window)
        passing = self._changed and self._change_matters
        known = self._price * float(self._misses.expected[n]) if self._splits else 0.0
        self._times.add(n + 1, (step_s - draft_s) / speed - known, self._step, passing=passing, speed=speed)

    def _catch_up(self) -> None:
        """Learn from the gathered steps without draft; they are many, short, and alike."""
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

    def _compare(self, k: int, n: int, n_tokens: int, draft_s: float, step_s: float) -> None:
        """Compare a step with its expectation; update the machine's speed, the cost of a change, the budget.

        A probe costs the time beyond that in which the present best makes as many tokens. It does not pay for
        spikes of the machine. It pays for a draft model that first has to catch up with the text.
        """
        speed, changed = self._speed.factor, self._changed
        drafting = self._draft.seconds(n) if k else 0.0
        expected = self._verify[n] * speed + drafting
        if changed:
            self._extras.append((step_s - max(0.0, draft_s - drafting) - expected) / speed)
            self._change_s = max(0.0, sorted(self._extras)[len(self._extras) // 2])
        else:
            self._speed.observe(step_s, expected)
        if self._is_new:
            return
        self._probes.earn(step_s, self._cycle[self._k] * speed)
        if self._probing:
            catching_up = min(max(0.0, draft_s - drafting), expected)
            took = min(step_s, expected + self._change_s * changed * speed + catching_up)
            self._probes.pay(took - n_tokens * self._cycle[self._k] / self._tokens[self._k] * speed)
        elif changed:
            self._probes.pay(self._change_s * speed)  # the change back to the length in force

    # Decisions

    def choose(self, room: int) -> int:
        """Return the draft length of the next step. Solve the model anew first if it is time for that."""
        if not self._queue and (
            self._is_new or self._since_s >= _PATIENCE * self._own_s or self._k != self._last
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
        """Solve the model anew. The result holds until the next decision."""
        started = self._clock()
        self._catch_up()
        if self._resident is not None and self._time_s - self._refreshed_s >= _LOOK_S:
            self._refresh(self._resident())
        k_max = self.longest if self._budget_s is None else self._fitting(self._budget_s)
        rates, trials = self._accept.estimate()
        go_on = self._go_on.estimate()[0]
        self.curve = now = curve(rates, go_on, self._costs())
        self._tokens, self._cycle = now.tokens.tolist(), now.cycle.tolist()
        theta = now.tokens / self._with_changes(now.cycle)
        self._k = best(theta, k_max, self._shortest)
        self._queue = []
        if self._is_new or self._probes.due(self._step):
            probe = self._next_probe(now, rates, trials, go_on, k_max)
            several = self._change_matters and not self._is_new
            self._queue = [probe] * (probes.STEPS if several else 1) if probe is not None else []
        self._since_s = 0.0
        took = self._clock() - started
        self._own_s += ((took - self._own_s) * 0.2) if self._own_s else took

    def _refresh(self, resident: BoolArray) -> None:
        """Read the residency. From the first time on, the times of verifications exclude their misses."""
        self._refreshed_s = self._time_s
        self._misses.refresh(resident)
        if not self._splits and self._price and self._misses.expected.any():
            self._splits = True
            self._times.shift(-self._price * self._misses.expected)

    def _costs(self) -> StepCosts:
        misses = self._misses.expected if self._splits else self._no_misses
        missed_s = self._price * misses
        total = np.maximum(self._times.estimate(missed_s) + missed_s, 1e-9)
        self._verify = total.tolist()
        base_s, token_s = self._draft.base_s / self._speed.factor, self._draft.token_s / self._speed.factor
        return StepCosts(base_s, token_s, total - missed_s, misses, self._price)

    def _with_changes(self, cycle: Float64Array) -> Float64Array:
        """Return `cycle` with the cost of a change of length, float64 [K + 1].

        The cost is spread over the steps for which a length is expected to last.
        """
        if not self._change_matters:
            return cycle
        cost = np.full(len(cycle), self._change_s / _DWELL)
        cost[self._k] = 0.0
        return np.asarray(cycle + cost)

    @property
    def _is_new(self) -> bool:  # True while the first choice is made
        return self._step < _FIRST

    @property
    def _change_matters(self) -> bool:
        return self._change_s > 0.05 * self._cycle[self._k]

    def _fitting(self, budget_s: float) -> int:
        return longest_within(self.curve, budget_s / self._speed.factor) if self.curve is not None else 0

    def _next_probe(
        self, now: Curve, rates: Float64Array, trials: Float64Array, go_on: Float64Array, k_max: int
    ) -> int | None:
        """Return the length of the next probe, or None.

        Each of the first steps has the length with the best geometric mean of what it has shown and what it
        promises. The second of these steps has a draft, and no draft is much longer than the double of those
        before. A new length has two steps, because an interruption of a single one, or its first use, would
        rule the length out. Later `Probes.pick` chooses.
        """
        if self._is_new and self._changed and 0 < self._last <= k_max:
            return self._last
        offered = np.maximum.accumulate(np.array(self._offered[:0:-1], np.float64))[::-1]
        hope = (1 - np.exp((offered - self._step) / 24)) * (not self._is_new)
        certain = now.tokens / now.cycle
        reach = tokens(optimistic(rates, trials, hope), np.maximum(go_on, hope))
        speed = self._speed.factor
        doubt = self._times.doubt(np.array(self._verify), self._step, speed)
        promise = reach / (now.cycle * (1 - doubt))
        allowed = np.zeros(len(certain), np.bool_)
        allowed[self._shortest : k_max + 1] = True
        allowed[0] = not self._is_new or any(self._offered)
        if self._is_new:
            tried = max((k for k, step in enumerate(self._offered) if step), default=0)
            allowed[max(self._shortest, 2 * tried + 1) + 1 :] = False
            return int(np.where(allowed, promise * certain, 0.0).argmax())
        loss = probes.STEPS * now.cycle * (1 - certain / certain[self._k]) + 2 * self._change_s
        return self._probes.pick(self._step, self._k, allowed, promise / certain[self._k], loss * speed)

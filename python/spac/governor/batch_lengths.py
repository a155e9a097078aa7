"""The governor of several sequences: draft lengths for each, learned from the batches' steps.

It is `roofline`'s for batches. Acceptance is learned for each sequence. All sequences' acceptance is the
prior of a new one. Times are those of batches by their tokens, whoever these belong to. Misses are learned
apart, from the demand of all sequences. Lengths that are not in force show nothing. So now and then, two
steps have the lengths that are best with optimistic expectations (`probes`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter

import numpy as np

from spac.costs.robust import RobustFit
from spac.governor import probes
from spac.governor.acceptance import SequenceRates, optimistic, rates_of
from spac.governor.allocation import DraftCosts, Prospects
from spac.governor.times import Misses, SizeTimes, Speed
from spac.machine.arrays import BoolArray, Float64Array, Int32Array

_PATIENCE = 150.0  # ratio of the time between decisions to that of a decision, which thus takes below 1 %
_LOOK_S = 0.03  # seconds between looks at residency and at the experts that a step wanted; looks take time
_LASTS = 24.0  # steps without a trial of a length until most of its acceptance is in doubt
_SPIKE = 1.5  # ratio to the expected time above which a probe's step was interrupted
_BETTER = 1.02  # factor in Θ for which lengths are changed, because each change may build graphs anew


@dataclass(frozen=True)
class Outcome:
    """Holds the result of a step for one of its sequences."""

    id: int
    n_drafted: int
    n_accepted: int


class BatchLengths:
    """Chooses the draft length of each sequence of a step, and learns from the step."""

    def __init__(
        self,
        longest: int,
        n_places: int,
        *,
        shortest: int = 0,
        budget_s: float | None = None,
        resident: Callable[[], BoolArray] | None = None,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        """Set the limits. n_places: the most sequences of a step; `RooflineGovernor` has the others."""
        self._longest, self._shortest, self._budget_s = longest, max(1, shortest), budget_s
        self._resident, self._clock = resident, clock
        size = n_places * (longest + 1)
        self._members = SequenceRates(longest, n_places)
        self._times, self._misses, self._speed = SizeTimes(size), Misses(size), Speed()
        self._draft: RobustFit | None = None
        self._price = 0.0
        self._splits = False  # True if the times are without the misses
        self._probes = probes.Probes()
        self._offered = np.zeros(longest)  # per position, the last step in which a draft had it
        self._tried = 0  # the longest draft so far
        self._climbs = (
            longest.bit_length() + 1
        )  # probes at first, with ever longer drafts, while these may pay
        self._step = 0
        self._in_force: dict[int, int] = {}
        self._asked: dict[int, int] = {}
        self._drafting: set[int] = set()  # the sequences that drafted in the last step
        self._expected: tuple[float, float] | None = None  # tokens and seconds of a step in force, at speed 1
        self._probing: dict[int, int] = {}
        self._probe_steps = 0
        self._probe_s = 0.0  # the expected seconds of a probe's step, at speed 1
        self._time_s = self._since_s = self._own_s = self._refreshed_s = self._next_look_s = 0.0

    @property
    def in_force(self) -> int:
        """The longest draft length of the last decision. A probe may be in progress instead."""
        return max(self._in_force.values(), default=0)

    def promise(self, agreed: BoolArray, n: int) -> float:
        """Return the seconds per token of `n` sequences at their best draft lengths, by the last costs.

        agreed: see `rates_of`. Without costs, the result is infinite.
        """
        verify_s = self._verify_s()
        if self._draft is None or not verify_s.any():
            return math.inf
        accept, go_on = rates_of(agreed, self._longest).estimate()[0], self._members.all_go_on.estimate()[0]
        prospects = Prospects(np.tile(accept, (n, 1)), np.tile(go_on, (n, 1)), verify_s, self._draft_costs)
        lengths = prospects.best(np.full(n, self._longest, np.int32), shortest=self._shortest)
        tokens, seconds = prospects.expect(lengths)
        return seconds * self._speed.factor / tokens

    def resume(self, agreed: BoolArray) -> None:
        """Go on after a pause, in which a text showed acceptance. agreed: see `rates_of`."""
        self._members.resume(rates_of(agreed, self._longest))
        self._in_force, self._probe_steps = {}, 0

    # Observations

    @property
    def wants_experts(self) -> bool:
        """True if residency is known and the next look is due."""
        return self._resident is not None and self._time_s >= self._next_look_s

    def demand(self, counts: Int32Array, n_verified: int) -> None:
        """Add the step's demand to the estimate of misses. counts: int32 [L, N], not kept."""
        self._misses.add(counts, n_verified)

    def observe(
        self,
        outcomes: Sequence[Outcome],
        draft_s: float,
        step_s: float,
        misses: int = -1,
        miss_s: float = 0.0,
    ) -> None:
        """Learn from the step of the last choice, from those of its sequences that were verified.

        draft_s, step_s: the seconds of all drafts and of the step. misses, miss_s: as for a `Governor`.
        """
        self._step += 1
        self._time_s += step_s
        self._since_s += step_s
        size = len(outcomes) + sum(each.n_drafted for each in outcomes)
        expected = self._expect(size, outcomes)
        self._learn_acceptance(outcomes)
        self._learn_draft(outcomes, draft_s)
        speed = self._speed.factor
        if misses >= 0:
            self._next_look_s = self._time_s + _LOOK_S
            self._misses.calibrate(size, misses)
            if misses:
                self._price += (miss_s / speed / misses - self._price) * (0.05 if self._price else 1.0)
        if expected:
            self._speed.observe(step_s, expected)
        known = self._price * float(self._misses.expected[size - 1]) if self._splits else 0.0
        self._times.add(size, (step_s - draft_s) / speed - known, self._step, speed=speed)
        self._account(outcomes, step_s)

    def _expect(self, size: int, outcomes: Sequence[Outcome]) -> float:
        """Return the expected seconds of a step at a speed of 1, 0 if a batch of its size is new."""
        if not self._times.has(size):
            return 0.0
        drafted = [each.n_drafted for each in outcomes]
        draft = self._draft_costs
        draft_s = draft.base_s + draft.pass_s * max(drafted) + draft.token_s * sum(drafted)
        return float(self._verify_s()[size - 1]) + (draft_s if any(drafted) else 0.0)

    def _learn_acceptance(self, outcomes: Sequence[Outcome]) -> None:
        drafts = [each for each in outcomes if self._asked.get(each.id, 0)]
        if not drafts:
            self._members.all_accept.age()
            return
        ids = [each.id for each in drafts]
        asked, drafted, accepted = (
            np.array(values, np.int32)
            for values in zip(*((self._asked[e.id], e.n_drafted, e.n_accepted) for e in drafts), strict=True)
        )
        longest = int(drafted.max())
        self._offered[:longest] = self._step
        self._tried = max(self._tried, int(asked.max()))
        if self._members.observe(self._members.rows(ids), asked, drafted, accepted):
            self._probes.hurry(self._step)

    def _learn_draft(self, outcomes: Sequence[Outcome], draft_s: float) -> None:
        """Learn the times of drafts.

        A draft after steps without one also evaluates their text, so it counts only if nothing is known.
        """
        drafting = {each.id for each in outcomes if self._asked.get(each.id, 0)}
        follows = drafting <= self._drafting
        self._drafting = drafting
        n = sum(each.n_drafted for each in outcomes)
        if not n or draft_s <= 0 or not (follows or self._draft is None):
            return
        passes, seconds = max(each.n_drafted for each in outcomes), draft_s / self._speed.factor
        if self._draft is None:
            self._draft = RobustFit((0.1 * seconds, 0.6 * seconds / passes, 0.3 * seconds / n))
        self._draft.observe((1.0, passes, n), seconds)

    def _account(self, outcomes: Sequence[Outcome], step_s: float) -> None:
        """Add the step to the budget of probes, and take from it what a probe cost."""
        if self._expected is None:
            return
        tokens, seconds = self._expected
        speed = self._speed.factor
        self._probes.earn(step_s, seconds * speed)
        if self._probe_steps:
            made = sum(each.n_accepted + 1 for each in outcomes)
            took = min(step_s, max(_SPIKE * self._probe_s, seconds) * speed)
            self._probes.pay(took - made * seconds * speed / tokens)

    # Decisions

    def choose(self, rooms: dict[int, int]) -> dict[int, int]:
        """Return the draft lengths of the next step by sequence. rooms: their longest useful drafts."""
        if self._probe_steps:
            self._probe_steps -= 1
        known = all(each in self._in_force for each in rooms)
        due = self._since_s >= _PATIENCE * self._own_s or (self._climbs and not self._probe_steps)
        if not known or (due and not self._probe_steps):
            self._decide(rooms)
        lengths = self._probing if self._probe_steps else self._in_force
        self._asked = {each: self._fitting(lengths.get(each, 0), room) for each, room in rooms.items()}
        return self._asked

    def _fitting(self, length: int, room: int) -> int:
        length = min(length, room)
        return length if length >= self._shortest else 0

    def _decide(self, rooms: dict[int, int]) -> None:
        """Choose the lengths in force, and those of a probe if it is time for one."""
        started = self._clock()
        ids = list(rooms)
        if self._resident is not None and self._time_s - self._refreshed_s >= _LOOK_S:
            self._refresh(self._resident())
        now, trials = self._prospects(ids)
        self._probe_steps = 0
        if now is not None:
            limits = np.array([min(room, self._longest) for room in rooms.values()], np.int32)
            budget_s = None if self._budget_s is None else self._budget_s / self._speed.factor
            best = now.best(limits, shortest=self._shortest, budget_s=budget_s)
            before = np.array([self._in_force.get(each, 0) for each in ids], np.int32)
            if all(each in self._in_force for each in ids) and (before <= limits).all():
                old, new = now.expect(before), now.expect(best)
                fits = budget_s is None or old[1] <= budget_s
                best = best if not fits or new[0] / new[1] > _BETTER * old[0] / old[1] else before
            self._in_force = dict(zip(ids, best.tolist(), strict=True))
            self._expected = now.expect(best)
            self._plan_probe(now, trials, ids, limits, budget_s)
        else:
            self._in_force = dict.fromkeys(ids, 0)
        self._since_s = 0.0
        took = self._clock() - started
        self._own_s += ((took - self._own_s) * 0.2) if self._own_s else took

    def _plan_probe(
        self, now: Prospects, trials: Float64Array, ids: list[int], limits: Int32Array, budget_s: float | None
    ) -> None:
        """Let the next steps have the lengths that are best with hope, if these promise enough."""
        if not (self._climbs or self._probes.due(self._step)):
            return
        assert self._expected is not None
        reach = np.minimum(limits, max(2 * self._tried, self._shortest))
        if self._climbs and reach.max() == limits.max() < self._longest:
            return  # all sequences are near their end
        hope = 1 - np.exp((self._offered - self._step) / _LASTS)
        hope[self._tried :] = 1.0
        doubt = self._times.doubt(now.verify_s, self._step, self._speed.factor)
        hopeful = Prospects(
            optimistic(now.accept, trials, hope), np.maximum(now.go_on, hope), now.verify_s * (1 - doubt),
            now.draft,
        )  # fmt: skip
        lengths = hopeful.best(reach, shortest=self._shortest, budget_s=budget_s)
        certain = self._expected[0] / self._expected[1]
        tokens, seconds = hopeful.expect(lengths)
        promise = tokens / seconds / certain
        self._climbs = self._climbs - 1 if self._tried < self._longest and promise > 1.01 else 0
        tokens, self._probe_s = now.expect(lengths)
        if not self._climbs:
            loss = probes.STEPS * (self._probe_s - tokens / certain) * self._speed.factor
            values = np.array([1.0, promise]), np.array([0.0, loss])
            if not lengths.any() or self._probes.pick(self._step, 0, np.ones(2, np.bool_), *values) is None:
                return
        self._probing = dict(zip(ids, lengths.tolist(), strict=True))
        self._probe_steps = probes.STEPS

    def _prospects(self, ids: list[int]) -> tuple[Prospects | None, Float64Array]:
        """Return what is expected, or None before the first step, and the trials behind the acceptance."""
        accept, go_on, trials = self._members.estimate(self._members.rows(ids))
        verify_s = self._verify_s()
        return (Prospects(accept, go_on, verify_s, self._draft_costs) if verify_s.any() else None), trials

    @property
    def _draft_costs(self) -> DraftCosts:
        return DraftCosts(*self._draft.units) if self._draft is not None else DraftCosts(0.0, 0.0, 0.0)

    def _verify_s(self) -> Float64Array:
        missed_s = (
            self._price * self._misses.expected if self._splits else np.zeros(len(self._misses.expected))
        )
        return np.asarray(self._times.estimate(missed_s) + missed_s)

    def _refresh(self, resident: BoolArray) -> None:
        """Read the residency. From the first time on, the times of steps exclude their misses."""
        self._refreshed_s = self._time_s
        self._misses.refresh(resident)
        if not self._splits and self._price and self._misses.expected.any():
            self._splits = True
            self._times.shift(-self._price * self._misses.expected)

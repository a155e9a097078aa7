"""Simulate router lookahead: while a layer runs, the experts of a layer that comes soon are fetched.

The router of the layer `distance` layers further on predicts experts from a layer's input. The prediction
reaches the host with the layer's ids, half a hand-off behind its dense part. `lag_s` later the predicted
experts that are not resident become urgent: they overtake the plan's copies. They evict the experts of lowest
priority, except those that this step has used or is predicted to use. A layer's mask is fixed when the host's
part of the layer before it ends, because behind that stream gate the device runs on without the host. An
expert that arrives later is computed on the CPU in this step, and stays in its slot.

Asked for are the predicted experts whose probability is at least `cut` and that are expected to arrive before
the mask is fixed. Copies that have not begun by then are dropped.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from bench.step_time.link import Link
from bench.step_time.machine import Machine, Model
from bench.step_time.predicted_routes import Predicted
from bench.step_time.simulation import Simulation, Spent
from bench.step_time.urgent_link import UrgentLink
from spac.machine.arrays import BoolArray, Int32Array
from spac.scheduler import Scheduler
from spac.scheduler.replay import Demand

_FORGET = 0.02  # weight of a layer in the running mean of the time to a deadline


@dataclass(frozen=True)
class Lookahead:
    """The settings of router lookahead."""

    distance: int = 2
    """Number of layers, at least 1."""
    cut: float = 0.5
    lag_s: float = 30e-6
    """Seconds from the arrival to the first copy: choosing, and the worker's wake-up."""
    dense_s: float = 6e-6
    """Seconds that the device needs more in every layer: the other router's product, and the new mask's
    copy."""


@dataclass
class Foresight(Spent):
    """Seconds and counts of the judged steps, with the results of the urgent copies."""

    predicted: int = 0  # not resident and predicted
    urgent: int = 0  # copies begun
    helped: int = 0  # experts that were asked for, arrived in time, and were used


@dataclass
class _Step:
    """The state of the step under way."""

    now: float = 0.0
    due: list[tuple[float, int]] = field(default_factory=list)  # (time, layer) at which experts are asked for
    asked: dict[int, BoolArray] = field(default_factory=dict)  # by layer: bool [N]
    begun: dict[int, float] = field(default_factory=dict)  # by layer: the time of the request


class LookaheadSimulation(Simulation):
    """A simulation of one machine, one model, one recording, one number of slots and one way of looking
    ahead."""

    def __init__(
        self, machine: Machine, model: Model, demand: Demand, n_slots: int,
        predicted: Predicted | None, how: Lookahead,
    ) -> None:  # fmt: skip
        """Take predictions of the recording's steps. With None, nothing is fetched inside a step."""
        super().__init__(machine, model, demand, n_slots)
        self._predicted, self._how = predicted, how
        self._window = how.distance * machine.dense(1) / len(self.layers)

    def run(self, scheduler: Scheduler, judged_from: int) -> Foresight:
        spent = super().run(scheduler, judged_from)
        assert isinstance(spent, Foresight)
        return spent

    def _spent(self) -> Spent:
        return Foresight()

    def _link(self) -> Link:
        return UrgentLink(self._shapes, self.pool_slots, self._model.expert_bytes)

    def _step(self, counts: Int32Array, verified: int, accepted: int, link: Link, spent: Spent) -> None:
        if not isinstance(link, UrgentLink) or not isinstance(spent, Foresight):
            super()._step(counts, verified, accepted, link, spent)
            return
        machine, step, began = self._machine, _Step(), link.urgent_uploads
        self._make_draft(verified - 1, link, spent)
        dense = machine.dense(verified) / len(counts) + self._how.dense_s
        mask = self._fixed_mask(0, link, step)
        for il, row in enumerate(counts):
            self._pass(dense, link, spent, step)
            spent.dense += dense
            half = machine.hand_off_s / 2
            if self._predicted is not None and il + self._how.distance < len(counts):
                step.due.append((step.now + half + self._how.lag_s, il + self._how.distance))
            used, pairs = row > 0, int(row[~mask].sum())
            whole = int(np.count_nonzero(mask)) == self.layers[il].n_expert
            if not whole:
                self._pass(half, link, spent, step)
                spent.hand_off += 2 * half
            hits, distinct = int((used & mask).sum()), int(used.sum())
            spent.distinct += distinct
            spent.hits += hits
            spent.helped += int((used & mask & step.asked.get(il, False)).sum())
            self._experts_of(pairs, distinct - hits, hits, link, spent, step)
            link.kept[il] = used  # they are used again, which the plan does not know yet
            if il + 1 < len(counts):
                mask = self._fixed_mask(il + 1, link, step)
            if not whole:
                self._pass(half, link, spent, step)
        spent.steps += 1
        spent.tokens += 1 + accepted
        spent.urgent += link.urgent_uploads - began

    def _fixed_mask(self, layer: int, link: UrgentLink, step: _Step) -> BoolArray:
        if layer in step.begun:
            took = step.now - step.begun[layer]
            self._window += _FORGET * (took - self._window)
        link.relax(layer)
        return np.asarray(link.slot_of[layer] >= 0)

    def _pass(self, seconds: float, link: UrgentLink, spent: Foresight, step: _Step) -> None:
        """Let time pass in which the CPU reads nothing."""
        end = step.now + seconds
        while step.due and step.due[0][0] <= end:
            link.run(max(0.0, step.due[0][0] - step.now), self._machine.link)
            step.now = max(step.now, step.due[0][0])
            self._ask(step.due.pop(0)[1], link, spent, step)
        link.run(end - step.now, self._machine.link)
        step.now = end

    def _experts_of(
        self, pairs: int, misses: int, hits: int, link: UrgentLink, spent: Foresight, step: _Step
    ) -> None:
        """Run both sides of one layer's experts like Simulation._block, with requests for copies in
        between."""
        costs, machine = self._experts, self._machine
        device, began = costs.device_expert_s * hits, step.now
        alone = left = costs.cpu_s(pairs, misses)
        slower = 1 + costs.cpu_expert_s * misses * (1 / machine.slowed - 1) / alone if alone else 1.0
        while left > 1e-12:
            while step.due and step.due[0][0] <= step.now + 1e-12:
                self._ask(step.due.pop(0)[1], link, spent, step)
            until = step.due[0][0] - step.now if step.due else left * slower
            if link.pending > 0:
                took = min(left * slower, link.pending / machine.link_busy, until)
                link.run(took, machine.link_busy)
                left -= took / slower
            else:
                took = min(left, until)
                left -= took
            step.now += took
        cpu = step.now - began
        self._pass(max(0.0, device - cpu), link, spent, step)
        spent.experts += max(device, cpu)
        spent.contention += max(device, cpu) - max(device, alone)

    def _ask(self, layer: int, link: UrgentLink, spent: Foresight, step: _Step) -> None:
        """Ask for predicted experts of this layer: the input that predicts them is on the host."""
        assert self._predicted is not None
        probability = self._predicted.probability[self._at, layer]
        chosen = probability >= self._how.cut
        link.kept[layer] = chosen
        step.begun[layer] = step.now
        absent = np.flatnonzero(chosen & (link.slot_of[layer] < 0))
        spent.predicted += len(absent)
        ordered = absent[np.argsort(-probability[absent], kind="stable")]
        room = (self._window * self._machine.link_busy - link.ahead) / link.expert_bytes
        ordered = ordered[: max(0, int(room))]
        asked = np.zeros(len(chosen), np.bool_)
        asked[ordered] = True
        step.asked[layer] = asked
        link.urge((layer, int(i)) for i in ordered)

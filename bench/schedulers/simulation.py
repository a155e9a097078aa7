"""Run a scheduler over recorded demand on a modelled machine, and compute how long the steps take.

A step begins with the host's own work, and drafts (the device is busy, DRAM is idle). Then every layer does
its dense part on the device and its experts on both sides at once: max(device, CPU). It adds the hand-off
unless all experts of the layer are resident (with one missing the device waits for the CPU, even if no token
uses that expert). Uploads follow the scheduler's last plan through the mechanism's own bookkeeping, best
first, all the time. They run at the link's speed while the CPU does nothing, else at `link_busy`, and then
the CPU reads at the rest of DRAM's bandwidth. A layer finds resident what has arrived when it begins. Two
copies are on the link at once, one behind the other, as in spac, and no plan takes them back. A victim is
gone once the copy over it is one of them.

The model leaves out the cost of scheduling itself, batches of small copies, the order of equal priorities by
the running layer (they go from layer 0 on), and attention over a long context.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from bench.schedulers.machine import Known, Machine, Model
from spac import _core
from spac.machine.arrays import BoolArray, Int32Array
from spac.replay import Demand, at_verification
from spac.scheduler import Event, Plan, Scheduler, View

Expert = tuple[int, int]  # layer, index
AT_ONCE = 2
"""Copies that are queued on the link together."""


class Link:
    """A link that uploads experts into slots as plans ask for it, best first, as far as time allows.

    It uses the mechanism's own bookkeeping.
    """

    def __init__(
        self, layers: Sequence[tuple[int, int]], pool_slots: Sequence[int], expert_bytes: int
    ) -> None:
        """Make empty slots. `layers` has (experts, pool) of each layer. All experts have one size."""
        self._table = _core.SlotTable(list(layers), list(pool_slots))
        self._pools = [pool for _, pool in layers]
        self._bytes = float(expert_bytes)
        self.slot_of: Int32Array = np.full((len(layers), max(n for n, _ in layers)), -1, np.int32)
        """int32 [L, N], which changes while copies run."""
        self.uploads = 0
        """The number of complete copies."""
        self._queue: list[tuple[Expert, Expert | None]] = []
        self._under_way: list[Expert] = []  # the first of them is copied now
        self._left = 0.0  # its bytes that are still to come

    @property
    def pending(self) -> float:
        """Return the bytes that are still to come."""
        waiting = len(self._under_way[1:]) + len(self._queue)
        return self._left + self._bytes * waiting

    def follow(self, plan: Plan) -> None:
        """Follow this plan from now on. The copies under way are finished."""
        for held in self._under_way:  # they count as resident, or the plan would ask for them again
            self._table.acquire(*held)
        plan = plan.ranked()
        actions = self._table.toward(plan.priority, plan.threshold, 0)
        for held in self._under_way:
            self._evict(held)
        queue = [(load, victim) for _, load, victim in reversed(actions)]
        self._queue = [each for each in queue if each[1] is None or each[1] not in self._under_way]

    def run(self, seconds: float, rate: float) -> None:
        """Copy for `seconds`, at `rate` bytes per second."""
        room = seconds * rate
        while room > 0 and (self._under_way or self._queue):
            while self._queue and len(self._under_way) < AT_ONCE:
                self._begin()
            done = min(room, self._left)
            room -= done
            self._left -= done
            if self._left <= 1e-6:
                self._end()

    def _begin(self) -> None:
        load, victim = self._queue.pop()
        if victim is not None:
            self._evict(victim)
            self.slot_of[victim] = -1
        if not self._under_way:
            self._left = self._bytes
        self._under_way.append(load)

    def _end(self) -> None:
        done = self._under_way.pop(0)
        self.slot_of[done] = self._table.acquire(*done)
        self._left = self._bytes if self._under_way else 0.0
        self.uploads += 1

    def _evict(self, expert: Expert) -> None:
        self._table.release(self._pools[expert[0]], self._table.evict(*expert))


@dataclass
class Spent:
    """Seconds of the judged steps by what took them, and counts of what was done in them."""

    host: float = 0.0
    draft: float = 0.0
    dense: float = 0.0
    hand_off: float = 0.0
    experts: float = 0.0  # max(device, CPU), summed over the layers; contention included
    contention: float = 0.0  # of these, what the CPU lost to uploads
    steps: int = 0
    tokens: int = 0
    distinct: int = 0
    hits: int = 0
    uploads: int = 0

    @property
    def seconds(self) -> float:
        return self.host + self.draft + self.dense + self.hand_off + self.experts

    @property
    def rate(self) -> float:
        """Return tokens per second."""
        return self.tokens / self.seconds

    @property
    def hit_rate(self) -> float:
        """Return the hit rate of distinct experts per step."""
        return self.hits / max(1, self.distinct)


class Simulation:
    """A simulation of one machine, one model, one recording and one number of slots."""

    def __init__(self, machine: Machine, model: Model, demand: Demand, n_slots: int) -> None:
        """Take the recording's layers as layers of the model."""
        self.layers = tuple(replace(layer, expert_bytes=model.expert_bytes) for layer in demand.layers)
        self._machine, self._model, self._demand = machine, model, demand
        self._shapes = [(layer.n_expert, layer.pool) for layer in self.layers]
        self.pool_slots = _core.share_out(n_slots, self._shapes, 1 + max(pool for _, pool in self._shapes))
        self._draft_token_s = machine.draft_token_s(model)
        self._experts = machine.experts(model)

    def run(self, scheduler: Scheduler, judged_from: int) -> Spent:
        """Run all steps under a scheduler, which knows the costs, and count those from `judged_from` on."""
        demand = self._demand
        costs = Known(self._machine.costs(self._model))
        link = self._link(self.pool_slots)
        view = View(
            self.layers, np.array(self.pool_slots, np.int32), link.slot_of, np.zeros_like(link.slot_of),
            costs=costs,
        )  # fmt: skip
        plan = Plan.nothing(*link.slot_of.shape)

        def ask(event: Event, now: View) -> None:
            nonlocal plan
            if event in scheduler.events and (found := scheduler.on(event, now)) is not None:
                plan = found.over(plan)
                link.follow(plan)

        ask(Event.START, view)
        spent, before = Spent(), 0
        for step, counts in enumerate(demand.counts):
            if step == judged_from:
                spent, before = Spent(), link.uploads
            self._step(counts, int(demand.verified[step]), int(demand.accepted[step]), link, spent)
            ask(Event.VERIFY_END, at_verification(view, demand, step, scheduler))
        spent.uploads = link.uploads - before
        return spent

    def _link(self, pool_slots: Sequence[int]) -> Link:
        return Link(self._shapes, pool_slots, self._model.expert_bytes)

    def fixed(self, resident: BoolArray, judged_from: int) -> Spent:
        """Simulate a fixed residency (bool [L, N]) without uploads."""
        link = self._link([0] * len(self.pool_slots))
        link.slot_of[resident] = 0
        spent, demand = Spent(), self._demand.part(slice(judged_from, None))
        for counts, verified, accepted in zip(demand.counts, demand.verified, demand.accepted, strict=True):
            self._step(counts, int(verified), int(accepted), link, spent)
        return spent

    def _step(self, counts: Int32Array, verified: int, accepted: int, link: Link, spent: Spent) -> None:
        machine = self._machine
        draft = (verified - 1) * self._draft_token_s
        link.run(machine.step_s + draft, machine.link)
        spent.host += machine.step_s
        spent.draft += draft
        dense = machine.dense(verified) / len(counts)
        for il, (row, slots) in enumerate(zip(counts, link.slot_of, strict=True)):
            link.run(dense, machine.link)
            spent.dense += dense
            on_device, used = slots >= 0, row > 0
            spent.distinct += int(np.count_nonzero(used))
            spent.hits += int(np.count_nonzero(used & on_device))
            if int(np.count_nonzero(on_device)) < self.layers[il].n_expert:
                link.run(machine.hand_off_s, machine.link)
                spent.hand_off += machine.hand_off_s
            self._block(il, row, link, spent)
        spent.steps += 1
        spent.tokens += 1 + accepted

    def _block(self, layer: int, row: Int32Array, link: Link, spent: Spent) -> None:
        """Run both sides of one layer's experts. row: int32 [N], the tokens of every expert."""
        costs, machine = self._experts, self._machine
        on_device, used = link.slot_of[layer] >= 0, row > 0
        hits, misses = int(np.count_nonzero(used & on_device)), int(np.count_nonzero(used & ~on_device))
        pairs = int(row[~on_device].sum())
        device = costs.device_expert_s * hits
        alone = cpu = costs.cpu_s(pairs, misses)
        if alone > 0 and link.pending > 0:
            slowed = alone + costs.cpu_expert_s * misses * (1 / machine.slowed - 1)
            drained = link.pending / machine.link_busy
            # The CPU's work during uploads goes at the lower speed, the rest at its own.
            cpu = slowed if drained >= slowed else drained + (slowed - drained) * alone / slowed
            link.run(min(cpu, drained), machine.link_busy)
        link.run(max(0.0, device - cpu), machine.link)
        spent.experts += max(device, cpu)
        spent.contention += max(device, cpu) - max(device, alone)

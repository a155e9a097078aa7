"""Run a scheduler over recorded demand on a modelled machine, and compute how long the steps take.

A step drafts first (the device is busy, DRAM is idle). Schedulers that follow a draft are asked while it is
made, layer by layer or token by token. Then every layer does its dense part on the device and
its experts on both sides at once: max(device, CPU). It adds the hand-off unless all experts of the layer are
resident (with one missing the device waits for the CPU, even if no token uses that expert). Uploads follow
the scheduler's last plan through the mechanism's own bookkeeping, best first, all the time. They run at the
link's speed while the CPU does nothing, else at `link_busy`, and then the CPU reads at the rest of DRAM's
bandwidth. A layer finds resident what has arrived when it begins. A victim is gone once the copy over it
begins.

The model leaves out the cost of scheduling itself, batches of copies, the order of equal priorities by the
running layer (they go from layer 0 on), and attention over a long context.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from bench.step_time.link import Link
from bench.step_time.machine import Known, Machine, Model
from spac import _core
from spac.machine.arrays import BoolArray, Int32Array
from spac.scheduler import Event, Plan, Scheduler, View
from spac.scheduler.demand import Demand, known_layers, routes_of_step

_DRAFTING = frozenset({Event.DRAFT_LAYER, Event.DRAFT_TOKEN, Event.DRAFT_END})


@dataclass
class Spent:
    """Seconds of the judged steps by what took them, and counts of what was done in them."""

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
        return self.draft + self.dense + self.hand_off + self.experts

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
        self._at = 0
        self._draft: Callable[[int, int], None] | None = None  # makes the draft of a step, which has n tokens
        self.waits = False
        """True if a draft waits for the copies of each layer before it computes the next one."""
        self._waited = 0.0

    def run(self, scheduler: Scheduler, judged_from: int) -> Spent:
        """Run all steps under a scheduler, which knows the costs, and count those from `judged_from` on."""
        demand = self._demand
        costs = Known(self._machine.costs(self._model))
        link = self._link()
        view = View(
            self.layers, np.array(self.pool_slots, np.int32), link.slot_of, np.zeros_like(link.slot_of),
            costs=costs,
        )  # fmt: skip
        plan = Plan.nothing(*link.slot_of.shape)
        drafts = demand.drafts_for(scheduler)

        def ask(event: Event, now: View) -> None:
            nonlocal plan
            if event in scheduler.events and (found := scheduler.on(event, now)) is not None:
                plan = found.over(plan)
                link.follow(plan)

        def draft(step: int, n_drafted: int) -> None:
            """Let the link run while a draft is made, and ask the scheduler layer by layer."""
            tokens = routes_of_step(drafts, step, scheduler)
            n_layer, by_layer = len(self.layers), Event.DRAFT_LAYER in scheduler.events
            for index in range(n_drafted):
                for layer in range(n_layer):
                    link.run(self._draft_token_s / n_layer, self._machine.link)
                    if by_layer and layer < len(scheduler.critical):
                        seen = known_layers(tokens, index, layer)
                        now = replace(view, step=step, n_drafted=index, draft_routes=seen, layer=layer)
                        ask(Event.DRAFT_LAYER, now)
                        if self.waits:
                            wait = link.pending / self._machine.link
                            link.run(wait, self._machine.link)
                            self._waited += wait
                now = replace(view, step=step, n_drafted=index + 1, draft_routes=tokens[:, : index + 1])
                ask(Event.DRAFT_TOKEN, now)
            ask(Event.DRAFT_END, replace(view, step=step, n_drafted=n_drafted, draft_routes=tokens))

        self._draft = draft if scheduler.events & _DRAFTING else None
        ask(Event.START, view)
        routes = demand.routes if scheduler.wants_routes else None
        spent, before = self._spent(), 0
        for step, counts in enumerate(demand.counts):
            if step == judged_from:
                spent, before = self._spent(), link.uploads
            verified, accepted = int(demand.verified[step]), int(demand.accepted[step])
            self._at = step
            self._step(counts, verified, accepted, link, spent)
            now = replace(
                view, demand=counts, step=step, n_drafted=verified - 1, n_verified=verified,
                n_accepted=accepted, text=0 if demand.texts is None else int(demand.texts[step]),
                routes=None if routes is None else np.ascontiguousarray(routes[step, :, :verified]),
            )  # fmt: skip
            ask(Event.VERIFY_END, now)
        spent.uploads = link.uploads - before
        return spent

    def _link(self) -> Link:
        return Link(self._shapes, self.pool_slots, self._model.expert_bytes)

    def _spent(self) -> Spent:
        return Spent()

    def whole_layers(self, judged_from: int) -> Spent:
        """Simulate llama.cpp's --n-cpu-moe: the experts of as many whole layers as fit are on the device, the
        others' on the CPU. Its hand-off is taken to cost as much as spac's."""
        left, resident = sum(self.pool_slots), np.zeros(self._demand.counts.shape[1:], np.bool_)
        for row, layer in zip(resident, self.layers, strict=True):
            if layer.n_expert > left:
                break
            row[: layer.n_expert] = True
            left -= layer.n_expert
        return self.fixed(resident, judged_from)

    def fixed(self, resident: BoolArray, judged_from: int) -> Spent:
        """Simulate a fixed residency (bool [L, N]) without uploads."""
        self._draft = None
        link = Link(self._shapes, [0] * len(self.pool_slots), self._model.expert_bytes)
        link.slot_of[resident] = 0
        spent, demand = Spent(), self._demand.part(slice(judged_from, None))
        for counts, verified, accepted in zip(demand.counts, demand.verified, demand.accepted, strict=True):
            self._step(counts, int(verified), int(accepted), link, spent)
        return spent

    def _step(self, counts: Int32Array, verified: int, accepted: int, link: Link, spent: Spent) -> None:
        machine = self._machine
        self._make_draft(verified - 1, link, spent)
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

    def _make_draft(self, n: int, link: Link, spent: Spent) -> None:
        """Draft n tokens while copies run."""
        seconds, self._waited = n * self._draft_token_s, 0.0
        if self._draft is None:
            link.run(seconds, self._machine.link)
        else:
            self._draft(self._at, n)
        spent.draft += seconds + self._waited

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

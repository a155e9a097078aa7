"""Layers become whole only where that pays, with all of their experts, within the slots, and stay whole."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from types import SimpleNamespace
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from spac.config import SamplingConfig
from spac.costs import Costs, ExpertCosts
from spac.engine import Engine
from spac.papers.moe_spac import MoeSpacScheduler
from spac.scheduler import Event, Plan, Scheduler, View, whole_layers
from spac.scheduler.logistic import LogisticScheduler
from spac.scheduler.whole_layers import _Pool
from tests.engine.conftest import config
from tests.scheduler.reference_logistic import Reference
from tests.scheduler.views import make_view, models

N_LAYER, N_EXPERT, N_USED = 8, 16, 2
EXPERT = ExpertCosts(
    cpu_layer_s=0.0, cpu_expert_s=20e-6, cpu_pair_s=2e-6, cpu_pair_only_s=20e-6, device_expert_s=1e-6,
    upload_s=50e-6,
)  # fmt: skip


class MoeSpac(MoeSpacScheduler):
    """The scheduler with a switch for whole layers."""

    def __init__(self, *, whole: bool = True) -> None:
        super().__init__()
        self._looks = whole

    def on(self, event: Event, view: View) -> Plan | None:
        plan = super().on(event, view)
        if event == Event.START and not self._looks:
            self._whole.observe = lambda *_: False
        return plan


KINDS = [LogisticScheduler, MoeSpac, Reference]


@dataclass(frozen=True)
class Known:
    costs: Costs


def costs(hand_off_s: float, n_pool: int = 1, **expert: float) -> Known:
    return Known(Costs((replace(EXPERT, **expert),) * n_pool, 0.0, 0.0, (1e-3,), (1e-3,), hand_off_s))


def flat(n_step: int, n_token: int = 1, seed: int = 1) -> np.ndarray:
    """Return int32 [T, L, N]: every expert is as likely as any other."""
    rng = np.random.default_rng(seed)
    scores = rng.random((n_step, n_token, N_LAYER, N_EXPERT))
    chosen = np.argsort(scores, axis=3)[..., :N_USED]
    counts = np.zeros((n_step, N_LAYER, N_EXPERT), np.int32)
    at = np.indices(chosen.shape)
    np.add.at(counts, (at[0], at[2], chosen), 1)
    return counts


def local(n_step: int, seed: int = 1) -> np.ndarray:
    """Return int32 [T, L, N]: the same few experts for long, then others, in every layer at its own time."""
    rng = np.random.default_rng(seed)
    moved = np.cumsum(rng.random((n_step, N_LAYER)) < 0.02, axis=0)
    counts = np.zeros((n_step, N_LAYER, N_EXPERT), np.int32)
    step, layer = np.indices(moved.shape)
    for place in range(N_USED):
        counts[step, layer, (3 * moved + place) % N_EXPERT] = 1
    return counts


def run(
    subject: Scheduler, demand: np.ndarray, n_slots: int, known: Known | None, *, start: bool = True
) -> Iterator[tuple[View, Plan]]:
    """Yield every step's view and plan. Residents are the last plan's best wanted experts that fit."""
    view = make_view([N_EXPERT] * N_LAYER, [n_slots])
    plan = Plan.nothing(N_LAYER, N_EXPERT)
    if start:
        plan = subject.on(Event.START, view) or plan
    for number, counts in enumerate(demand):
        order = np.argsort(-np.where(plan.wanted, plan.priority, -1), axis=None, kind="stable")
        slot_of = np.full(counts.size, -1, np.int32)
        slot_of[order[: min(n_slots, int(plan.wanted.sum()))]] = 0
        view = replace(
            view, demand=counts, n_verified=int(counts[0].sum()) // N_USED, step=number, costs=known,
            slot_of=slot_of.reshape(counts.shape),
        )  # fmt: skip
        plan = subject.on(Event.VERIFY_END, view) or plan
        yield view, plan


def seconds(view: View, known: Known) -> float:
    """Return the step's time: missing experts on the CPU, and one hand-off per layer that is not whole."""
    missing = (view.slot_of < 0) & view.exists
    cpu = (view.demand > 0) & missing
    return 22e-6 * int(cpu.sum()) + known.costs.hand_off_s * int(missing.any(axis=1).sum())


@pytest.mark.parametrize("kind", KINDS)
def test_on_flat_routing_slots_become_whole_layers_and_stay(kind):
    known, demand, n_slots = costs(60e-6), flat(500), 3 * N_EXPERT + 5
    spent, sides = {}, []
    for whole in (True, False):
        subject = kind(whole=whole)
        steps = list(run(subject, demand, n_slots, known))
        spent[whole] = sum(seconds(view, known) for view, _ in steps[250:])
        resident = [((view.slot_of >= 0).all(axis=1)) for view, _ in steps]
        if whole:
            sides = resident
            assert subject._whole.whole.sum() == 3
        else:
            assert not subject._whole.whole.any()
    # Three hand-offs of eight are saved permanently. A whole layer stays whole.
    assert spent[True] < spent[False] - 250 * 2.5 * 60e-6
    assert all((before <= after).all() for before, after in pairwise(sides[100:]))


@pytest.mark.parametrize("kind", [LogisticScheduler, MoeSpac])
@pytest.mark.parametrize(
    ("demand", "known"),
    [
        (local(400), costs(15e-6)),  # wanted experts fit, so slots are worth more where they are
        (flat(200), costs(0.0)),
        (flat(200), None),
        (flat(200, n_token=9), costs(20e-6, device_expert_s=15e-6)),  # the device would take the saved time
        (flat(200), costs(20e-6, upload_s=0.1)),  # the saved time would never repay the copies
    ],
    ids=["local", "no hand-off", "no costs", "slow device", "slow link"],
)
def test_where_it_does_not_pay_plans_are_as_without(kind, demand, known):
    with_it, without = (list(run(kind(whole=on), demand, 24, known)) for on in (True, False))
    for (_, plan), (_, other) in zip(with_it, without, strict=True):
        np.testing.assert_array_equal(plan.priority, other.priority)
        np.testing.assert_array_equal(plan.threshold, other.threshold)


def test_when_routing_becomes_local_whole_layers_are_given_up():
    known, subject = costs(30e-6), LogisticScheduler()
    list(run(subject, flat(400), 24, known))
    assert subject._whole.whole.sum() == 1
    list(run(subject, local(600), 24, known, start=False))
    assert subject._whole.whole.sum() == 0


def random_steps(
    model: tuple[list[int], list[int], list[int]], seed: int, n_step: int, known: Known | None
) -> Iterator[View]:
    """Yield random demand over any model. Each step has other residents, sometimes all experts."""
    n_experts, pools, slots = model
    rng = np.random.default_rng(seed)
    start = make_view(n_experts, slots, pools)
    taste = rng.gumbel(size=start.demand.shape) * rng.choice([0.0, 1.0, 3.0])
    for number in range(n_step):
        n_token = int(rng.integers(1, 6))
        uses = np.minimum(rng.poisson(np.exp(taste - 2) * n_token), n_token)
        demand = np.where(start.exists, uses, 0).astype(np.int32)
        there = rng.random(demand.shape) < rng.choice([0.3, 0.7, 1.0])
        yield replace(
            start, demand=demand, slot_of=np.where(start.exists & there, 0, -1).astype(np.int32), step=number,
            n_verified=n_token, n_drafted=n_token - 1, costs=known,
        )  # fmt: skip


def test_looks_are_rarer_where_each_takes_longer():
    """All experts of 48 × 128 are looked at every 4 steps, and those of 48 × 512 every 16."""

    def looks(n_expert):
        view = replace(make_view([n_expert] * 48, [48 * 20]), costs=costs(1e-3))
        subject = whole_layers.WholeLayers(view)
        with patch.object(subject, "_look", return_value=False) as look:
            for _ in range(32):
                subject.observe(view, np.zeros(view.demand.shape), np.ones(view.demand.shape, np.int32))
        return look.call_count

    assert [looks(n) for n in (8, 128, 255, 256, 512, 600)] == [8, 8, 8, 4, 2, 2]


QUICK = {"EVERY": 1, "_LOOKS": 2, "_SHARE": 0.3}


@settings(deadline=None, max_examples=60)
@given(models(), st.integers(0, 2**32), st.integers(4, 40), st.sampled_from(KINDS))
def test_what_is_to_be_whole_is_wanted_whole_and_fits(model, seed, n_step, kind):
    n_experts, pools, slots = model
    subject = kind()
    with patch.multiple(whole_layers, **QUICK):
        start = make_view(n_experts, slots, pools)
        subject.on(Event.START, start)
        for view in random_steps(model, seed, n_step, costs(1e-3, 3)):
            plan = subject.on(Event.VERIFY_END, view)
            if plan is None:
                continue
            whole, wanted = subject._whole.whole > 0, plan.wanted
            assert not wanted[~view.exists].any()
            assert wanted[whole[:, None] & view.exists].all()
            for pool, n_slots in enumerate(slots):
                mine = np.array(pools) == pool
                n_whole = int(view.exists[mine & whole].sum())
                assert n_whole <= n_slots
                assert subject._whole.slots_left[pool] == n_slots - n_whole
                if not (mine & whole).any():
                    continue
                rest = plan.priority[mine & ~whole]
                assert plan.priority[mine & whole][view.exists[mine & whole]].min() > rest.max(initial=-1)
                if isinstance(subject, LogisticScheduler) and wanted[mine & ~whole].any():
                    least = rest[wanted[mine & ~whole]].min()
                    assert (rest > least).sum() < n_slots - n_whole


@settings(deadline=None, max_examples=30)
@example(([5, 5, 5], [0, 0, 0], [0]), 20546, LogisticScheduler)
@example(([8], [0], [0]), 2515, MoeSpacScheduler)
@example(([1, 1, 2, 1, 7, 1], [0, 0, 0, 0, 0, 0], [0]), 1048576, MoeSpacScheduler)
@given(models(), st.integers(0, 2**32), st.sampled_from([LogisticScheduler, MoeSpacScheduler]))
def test_a_restored_one_has_the_same_layers_whole(model, seed, kind):
    start = make_view(model[0], model[2], model[1])
    with patch.multiple(whole_layers, **QUICK):
        first, second = kind(), kind()
        for subject in (first, second):
            subject.on(Event.START, start)
        views = list(random_steps(model, seed, 24, costs(1e-3, 3)))
        for view in views[:12]:
            first.on(Event.VERIFY_END, view)
        second.restore(first.state())
        if kind is LogisticScheduler:
            # The margin is of the last look at costs, and a restored one of the state.
            second._price.margin, second._price.hold = first._price.margin, first._price.hold
        np.testing.assert_array_equal(first._whole.whole, second._whole.whole)
        np.testing.assert_array_equal(first._whole.slots_left, second._whole.slots_left)
        for view in views[12:]:
            if view.demand.any():  # a look at layers needs costs
                now = replace(view, costs=None)
                plans = [subject.on(Event.VERIFY_END, now) for subject in (first, second)]
                # A state has fewer digits than what it was made of, and a priority is a difference.
                priorities = [plan.priority for plan in plans]
                digits = 2 + 1e-5 * priorities[0].max()
                np.testing.assert_allclose(*priorities, rtol=0, atol=digits)
                assert first._whole.whole.tolist() == second._whole.whole.tolist()


def test_of_equal_priorities_the_first_experts_are_kept():
    layers = SimpleNamespace(
        whole=np.zeros(2), slots_left=[5], _exists=np.ones((2, 4), np.bool_), _n_expert=np.array([4, 4])
    )
    likely, used = np.ones((2, 4), np.int64), np.zeros((2, 4), np.bool_)
    pool = _Pool.of(layers, 0, np.arange(2), likely, np.full((2, 4), 7, np.int32), used)
    assert pool.kept.ravel().tolist() == [True] * 5 + [False] * 3
    assert pool.best.ravel().tolist() == [False] * 5 + [True] * 3


def test_a_state_that_names_too_many_layers_is_cut_to_the_slots():
    view = make_view([4, 4, 4], [9])
    subject = LogisticScheduler()
    subject.on(Event.START, view)
    subject.restore({**subject.state(), "whole": np.ones(3, np.uint8)})
    assert subject._whole.whole.tolist() == [1, 1, 0]
    assert subject._whole.slots_left.tolist() == [1]


@pytest.mark.parametrize("kind", [LogisticScheduler, MoeSpacScheduler])
def test_an_engine_waits_for_no_whole_layer_and_sees_its_demand(tiny_model, kind):
    class Seen(kind):
        def on(self, event: Event, view: View) -> Plan | None:
            self.view = replace(view, demand=view.demand.copy())
            return super().on(event, view)

    subject = Seen()
    hot = SamplingConfig(temp=1.5, seed=3, ignore_eos=True)
    settled = config(tiny_model("qwen3moe"), slots=0.75, scheduler=subject, sampling=hot)
    with patch.multiple(whole_layers, **QUICK), Engine(settled) as engine:
        engine.events.driver._costs = costs(1e-2, device_expert_s=0.0, upload_s=1e-6)
        ends = []

        def after_step(step):
            engine.experts.settle(10)
            whole, costs_of_layers = subject._whole.whole > 0, step.layer_costs.copy()
            ends.append((whole, engine.experts.stats["host_waits"], costs_of_layers))

        engine.events.after_step.append(after_step)
        "".join(engine.generate("def f(x):", 40))
        (whole, before, _), (_, after, layer_costs) = ends[-2:]
        assert 0 < whole.sum() < engine.experts.n_layer
        assert after - before == (~whole).sum()
        np.testing.assert_array_equal(layer_costs["wait_ns"] == 0, whole)
        assert (layer_costs["device_distinct"][whole] > 0).all()
        np.testing.assert_array_equal(subject.view.demand.sum(axis=1), subject.view.layers[0].n_used)

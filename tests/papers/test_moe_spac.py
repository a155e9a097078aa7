"""The system's plans: the wanted experts, their order, and the effect of every optional part."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spac import scheduler
from spac.costs import Costs, ExpertCosts
from spac.engine import Engine
from spac.papers.balancer import Averages, Levels, LevelSlots, Pools, Times, as_printed, solve
from spac.papers.moe_spac import MoeSpacOptions, MoeSpacScheduler
from spac.papers.utility import UtilityEstimator
from spac.replay import Demand, replay
from spac.scheduler import Event, Plan, View
from spac.scheduler.logistic import LogisticScheduler
from tests.engine.conftest import config
from tests.scheduler.views import demands, make_view, models

LEVEL = 1 << 20
PAPER = MoeSpacOptions.presets["paper"]
ABLATIONS = [
    {}, {"speculative": False}, {"adapt": False}, {"balance": False}, {"prefetch": False}, {"evict": False},
    {"learned": False}, {"levels": 1}, dict(PAPER), {**PAPER, "speculative": False, "evict": False},
]  # fmt: skip


@dataclass(frozen=True)
class Known:
    """The measured costs that a view shows."""

    costs: Costs


def known(cpu_pair_s: float, device_expert_s: float, upload_s: float) -> Known:
    expert = ExpertCosts(0.0, 0.0, cpu_pair_s, cpu_pair_s, device_expert_s, upload_s)
    return Known(Costs((expert,), 0.0, 0.0, (1e-3,), (1e-3,), 0.0))


def local_demand(n_step: int = 60, n_layer: int = 3, n_expert: int = 16, n_token: int = 9) -> Demand:
    """Return a demand with locality. Few experts are liked at a time, and the liking moves on slowly."""
    rng = np.random.default_rng(5)
    counts = np.zeros((n_step, n_layer, n_expert), np.int32)
    liking = rng.standard_normal((n_layer, n_expert)) * 2
    for step in range(n_step):
        liking = 0.97 * liking + 0.5 * rng.standard_normal(liking.shape)
        scores = liking + rng.gumbel(size=(n_token, *liking.shape))
        for token in scores:
            top = np.argsort(-token, axis=1)[:, :2]
            np.add.at(counts[step], (np.arange(n_layer)[:, None], top), 1)
    return Demand.of(counts, n_used=2, expert_bytes=1000)


def steps(
    subject: MoeSpacScheduler, demand: Demand, n_slots: int, costs: Known | None = None
) -> Iterator[tuple[View, Plan]]:
    """Yield every step's view and plan. Residents are the last plan's wanted experts, as many as fit."""
    n_layer, n_expert = demand.counts.shape[1:]
    view = replace(make_view([n_expert] * n_layer, [n_slots]), costs=costs)
    plan = subject.on(Event.START, view)
    for counts, verified in zip(demand.counts, demand.verified, strict=True):
        order = np.argsort(-np.where(plan.wanted, plan.priority, -1), axis=None, kind="stable")
        slot_of = np.full(counts.size, -1, np.int32)
        slot_of[order[: min(n_slots, int(plan.wanted.sum()))]] = 0
        view = replace(view, demand=counts, n_verified=int(verified), slot_of=slot_of.reshape(counts.shape))
        plan = subject.on(Event.VERIFY_END, view) or plan
        yield view, plan


@settings(deadline=None)
@given(models(), st.data(), st.sampled_from(ABLATIONS))
def test_every_variant_plans_for_every_model(model, data, options):
    n_experts, pools, slots = model
    subject: Any = scheduler.make("moe-spac", **options)
    start = make_view(n_experts, slots, pools)
    plan = subject.on(Event.START, start)
    assert plan.priority.shape == start.slot_of.shape
    for _ in range(data.draw(st.integers(1, 5))):
        view = make_view(n_experts, slots, pools, data.draw(demands(n_experts)), n_verified=3)
        plan = subject.on(Event.VERIFY_END, view) or plan
        assert (plan.priority >= 0).all()
        assert not plan.wanted[~start.exists].any()
        assert (subject.threshold >= 1).all()
        assert (subject.threshold <= subject.n_level).all()


@pytest.mark.parametrize("learned", [True, False])
def test_priorities_are_utility_levels_and_wanted_is_what_reaches_the_threshold(learned):
    subject = MoeSpacScheduler(learned=learned)
    for _, plan in steps(subject, local_demand(), 8):
        assert (plan.priority // LEVEL == np.clip(plan.priority // LEVEL, 0, 4)).all()
        np.testing.assert_array_equal(plan.wanted, plan.priority // LEVEL >= subject.threshold[:, None])
    np.testing.assert_array_equal(plan.priority // LEVEL, subject.utility)


def test_without_the_learned_order_a_level_goes_by_decayed_counts():
    subject = MoeSpacScheduler(learned=False)
    demand = Demand.of(np.array([[[9, 9, 0, 0]], [[9, 0, 9, 0]], [[9, 0, 0, 9]]], np.int32), n_used=2)
    *_, (_, plan) = steps(subject, demand, 4)
    order = plan.priority[0] % LEVEL
    assert order[0] > order[3] > order[2] > order[1] > 0


def test_by_default_a_level_is_in_the_learned_order_and_keeps_its_residents():
    subject, learned = MoeSpacScheduler(), LogisticScheduler(whole=False)
    demand = local_demand()
    learned.on(Event.START, make_view([16] * 3, [8]))
    kept = displaced = 0
    for view, plan in steps(subject, demand, 8):
        learned.on(Event.VERIFY_END, view)
        order, resident = plan.priority % LEVEL, view.slot_of >= 0
        for level in range(subject.n_level + 1):
            inside = subject.utility == level
            ranks = np.argsort(learned.probability[inside] + learned.margin * resident[inside])
            assert (np.diff(order[inside][ranks]) >= 0).all()
            # A missing expert overtakes a resident of its level only if it gains more than the margin.
            absent, held = learned.probability[inside & ~resident], learned.probability[inside & resident]
            gain = absent[:, None] - held[None]
            above = order[inside & ~resident][:, None] > order[inside & resident][None]
            assert not (above & (gain < learned.margin)).any()
            kept, displaced = kept + int((~above & (gain > 0)).sum()), displaced + int(above.sum())
    assert kept
    assert displaced


def test_the_paper_s_preset_is_the_printed_system_and_nothing_else():
    costs = known(1e-4, 1e-5, 1e-4)
    times = Times.of([ExpertCosts(0.0, 0.0, 1e-4, 1e-4, 1e-5, 1e-4)] * 3, 0.0)
    subject: Any = scheduler.make("moe-spac:paper")
    demand = local_demand()
    exists, pools = np.ones((3, 16), np.bool_), Pools(np.zeros(3, np.int32), np.array([8], np.int32))
    estimator = UtilityEstimator(exists, MoeSpacOptions(levels=4, printed=True))
    averages, thresholds = Averages(3, 4), set()
    for view, plan in steps(subject, demand, 8, costs):
        averages.observe(Levels(estimator.utility, 4), view.demand)
        utility = estimator.observe(view.demand, view.n_verified)
        resident = view.slot_of >= 0
        found = LevelSlots.of(Levels(utility, 4), resident, pools)
        threshold = solve(as_printed(averages, found, times, view.n_drafted))
        expected = np.where(resident & (view.demand > 0), 0, utility)  # Appendix D: 0 after use
        np.testing.assert_array_equal(plan.priority, expected * LEVEL)
        np.testing.assert_array_equal(plan.threshold, threshold * LEVEL)
        thresholds |= set(threshold.tolist())
    assert len(thresholds) > 1
    assert subject.n_level == 4
    assert not subject.wants_routes


def test_a_preset_goes_by_one_word_which_options_override():
    for written in ("moe-spac:paper,adapt=off,levels=8", "moe-spac:levels=8,adapt=off,paper"):
        name, options = scheduler.parse(written)
        assert (name, options) == ("moe-spac", {**PAPER, "adapt": False, "levels": 8})
    assert scheduler.parse(str(scheduler.SchedulerChoice.parse("moe-spac:paper")))[1] == PAPER


def test_without_the_balancer_the_threshold_is_fixed():
    for levels, expected in ((4, 2), (1, 1)):
        subject = MoeSpacScheduler(balance=False, levels=levels)
        list(steps(subject, local_demand(), 8))
        assert (subject.threshold == expected).all()


def test_without_the_prefetcher_nothing_moves_after_the_start():
    result = replay(MoeSpacScheduler(prefetch=False), local_demand(), 8)
    assert result.uploads == 8
    assert result.evictions == 0


def test_without_the_evictor_the_least_recently_used_goes():
    subject = MoeSpacScheduler(evict=False)
    used = np.full((3, 16), -1)
    for number, (view, plan) in enumerate(steps(subject, local_demand(), 8)):
        used[view.demand > 0] = number
        resident = np.argwhere(view.slot_of >= 0)
        for (a, b), (c, d) in pairwise(resident):
            assert (plan.priority[a, b] > plan.priority[c, d]) == (used[a, b] > used[c, d])


def test_the_balancer_leaves_work_to_a_fast_cpu():
    thresholds = []
    for costs in (known(1e-6, 1e-3, 0.0), known(1e-3, 1e-6, 0.0)):
        subject = MoeSpacScheduler()
        list(steps(subject, local_demand(), 48, costs))
        thresholds.append(subject.threshold)
    assert (thresholds[0] >= 3).all()
    assert (thresholds[1] == 1).all()


def test_a_prefix_of_short_steps_counts_as_many_tokens():
    """Without speculation, utilities are of about as many tokens as with it. One token changes little."""
    subject = MoeSpacScheduler(levels=4)
    view = make_view([4], [2], demand=[[1, 0, 0, 0]], n_verified=1)
    subject.on(Event.START, view)
    for _ in range(3):
        subject.on(Event.VERIFY_END, view)
    assert subject.utility.tolist() == [[2, 0, 0, 0]]
    subject.on(Event.VERIFY_END, make_view([4], [2], demand=[[0, 1, 0, 0]], n_verified=1))
    assert subject.utility[0, 0] >= 2


def test_the_prompt_moves_no_utility(tiny_model):
    with Engine(config(tiny_model("qwen3moe"), slots=0.3, scheduler="moe-spac")) as engine:
        subject = engine.events.driver.scheduler
        "".join(engine.generate("def f(x):", 9))
        before = subject.state()
        "".join(engine.generate("Another prompt, and a long one. " * 8, 1))
        for name, value in subject.state().items():
            np.testing.assert_array_equal(value, before[name], err_msg=name)
        "".join(engine.generate("This is a third prompt. " * 8, 2))
        assert subject.state()["step"] == before["step"] + 1

"""The rivals by name: each against a reference that is written one expert at a time."""

from collections import OrderedDict
from dataclasses import replace
from itertools import combinations, product
from math import comb
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spac import scheduler
from spac.costs import Costs, ExpertCosts
from spac.engine import Engine
from spac.papers import moe_infinity, profiled
from spac.papers.adapmoe import divide, expected_loads
from spac.papers.fate import Arc, shallow_shares
from spac.papers.hybrimoe import transferred
from spac.papers.mixtral_offloading import MixtralOffloadingScheduler
from spac.replay import replay
from spac.scheduler import Event, share_slots
from tests.engine.conftest import config
from tests.papers.test_moe_spac import local_demand
from tests.scheduler.views import demands, make_view, models

RIVALS = ("mixtral-offloading", "moe-infinity", "adapmoe", "fate", "hybrimoe", "profiled")


def verified(view, demand, **more):
    return replace(view, demand=np.asarray(demand, np.int32), n_verified=3, **more)


# Mixtral Offloading


class Cache:
    """One layer's LRU, as the released code keeps it. The least recently used expert comes first."""

    def __init__(self, n_expert, size):
        self.held = OrderedDict.fromkeys(range(n_expert - size, n_expert))

    def use(self, experts):
        missed = [each for each in experts if each not in self.held]
        for expert in sorted(set(experts) - set(missed)):
            self.held.move_to_end(expert)
        for expert in missed:
            if self.held:
                self.held.popitem(last=False)
                self.held[expert] = None


@settings(deadline=None, max_examples=50)
@given(models(), st.data())
def test_mixtral_offloading_is_an_lru_that_begins_full(model, data):
    n_experts, pools, slots = model
    view = make_view(n_experts, slots, pools)
    subject = scheduler.make("mixtral-offloading")
    shares = share_slots(view.layers, view.pool_slots)
    caches = [Cache(n, share) for n, share in zip(n_experts, shares, strict=True)]
    plan = subject.on(Event.START, view)
    for _ in range(data.draw(st.integers(1, 4))):
        assert [set(np.flatnonzero(row)) for row in plan.wanted] == [set(each.held) for each in caches]
        slot_of = np.where(plan.wanted, 0, -1).astype(np.int32)
        demand = data.draw(demands(n_experts))
        # Some layers are reported as soon as they ran, the others at the end.
        for layer in data.draw(st.sets(st.integers(0, len(n_experts) - 1))):
            row = np.where(np.arange(len(n_experts))[:, None] == layer, demand, 0)
            part = subject.on(Event.VERIFY_LAYER, replace(verified(view, row, slot_of=slot_of), layer=layer))
            assert part.layers.tolist() == [i == layer for i in range(len(n_experts))]
        plan = subject.on(Event.VERIFY_END, verified(view, demand, slot_of=slot_of)) or plan
        for cache, row in zip(caches, demand, strict=True):
            cache.use(np.flatnonzero(row).tolist())


# AdapMoE


@given(st.integers(1, 9), st.data(), st.floats(0, 0.99))
def test_expected_loads_are_those_of_equally_likely_experts(n_expert, data, accuracy):
    n_used = data.draw(st.integers(1, min(4, n_expert)))
    found = expected_loads(n_expert, n_used, accuracy)
    for slots in range(n_expert + 1):
        ways = [
            comb(n_expert - slots, missing) * comb(slots, n_used - missing) for missing in range(n_used + 1)
        ]
        loads = sum(n * (m - accuracy * (m > 0)) for m, n in enumerate(ways)) / sum(ways)
        assert found[slots] == pytest.approx(loads)


@given(
    st.lists(st.lists(st.floats(0, 4), min_size=1, max_size=4), min_size=1, max_size=4), st.integers(0, 12)
)
def test_the_division_is_the_best_of_all(loads, n_slots):
    loads = [np.array([0.0, *each])[::-1].copy() for each in loads]
    total = min(n_slots, sum(len(each) - 1 for each in loads))
    shares = divide(loads, n_slots)
    assert sum(shares) == total
    every = (each for each in product(*(range(len(x)) for x in loads)) if sum(each) == total)
    best = min(sum(x[i] for x, i in zip(loads, each, strict=True)) for each in every)
    assert sum(x[i] for x, i in zip(loads, shares, strict=True)) == pytest.approx(best, abs=1e-6)


def test_the_layer_that_nothing_foretells_gets_more_slots_and_the_others_alike():
    view = make_view([16] * 5, [30])
    plan = scheduler.make("adapmoe").on(Event.START, view)
    shares = plan.wanted.sum(axis=1)
    assert shares.sum() == 30
    assert shares[0] > shares[1:].max()
    assert shares[1:].max() - shares[1:].min() <= 1


# Fate


class Lists:
    """ARC as four lists, the oldest expert first; after Figure 4 of its paper."""

    def __init__(self, size):
        self.c, self.p = size, 0
        self.t1, self.t2, self.b1, self.b2 = [], [], [], []

    def replace(self, x):
        if self.t1 and (len(self.t1) > self.p or (x in self.b2 and len(self.t1) == self.p)):
            self.b1.append(self.t1.pop(0))
        else:
            self.b2.append(self.t2.pop(0))

    def request(self, x):
        if x in self.t1 or x in self.t2:
            (self.t1 if x in self.t1 else self.t2).remove(x)
            self.t2.append(x)
        elif x in self.b1:
            self.p = min(self.c, self.p + max(len(self.b2) // len(self.b1), 1))
            self.replace(x)
            self.b1.remove(x)
            self.t2.append(x)
        elif x in self.b2:
            self.p = max(0, self.p - max(len(self.b1) // len(self.b2), 1))
            self.replace(x)
            self.b2.remove(x)
            self.t2.append(x)
        else:
            if len(self.t1) + len(self.b1) == self.c:
                if len(self.t1) < self.c:
                    self.b1.pop(0)
                    self.replace(x)
                else:
                    self.t1.pop(0)
            else:
                total = len(self.t1 + self.t2 + self.b1 + self.b2)
                if total >= self.c:
                    if total == 2 * self.c:
                        self.b2.pop(0)
                    self.replace(x)
            self.t1.append(x)


@given(st.integers(1, 5), st.lists(st.integers(0, 9), max_size=120))
def test_the_cache_is_arc(size, requests):
    cache, lists = Arc(size), Lists(size)
    for expert in requests:
        cache.request(expert)
        lists.request(expert)
        assert [list(each) for each in cache.lists] == [lists.t1, lists.t2, lists.b1, lists.b2]
        assert cache.target == lists.p


def test_shallow_layers_are_kept_whole_where_the_others_still_have_what_a_token_uses():
    view = make_view([8] * 4, [17])  # a token uses two experts
    assert shallow_shares(view, 2).tolist() == [8, 3, 3, 3], "two whole layers would leave one slot for two"
    assert shallow_shares(replace(view, pool_slots=np.array([20], np.int32)), 2).tolist() == [8, 8, 2, 2]
    assert shallow_shares(view, 0).sum() == 17
    result = replay(scheduler.make("fate"), local_demand(80), 24)
    assert result.resident[1:, 0].all()
    assert (result.resident[-1].sum(axis=1) == [16, 4, 4]).all()


# HybriMoE


@given(st.lists(st.tuples(st.integers(0, 4), st.booleans()), min_size=1, max_size=7), st.data())
def test_the_schedule_ends_soonest_of_all_choices(experts, data):
    tokens = np.array([n for n, _ in experts], np.int32)
    resident = np.array([held for _, held in experts])
    costs = ExpertCosts(*(data.draw(st.floats(1e-3, 1)) for _ in range(6)))
    missing = np.flatnonzero((tokens > 0) & ~resident)

    def seconds(loaded):
        rest = np.setdiff1d(missing, loaded)
        device = (np.count_nonzero((tokens > 0) & resident) + len(loaded)) * costs.device_expert_s
        cpu = costs.cpu_s(int(tokens[rest].sum()), len(rest))
        return max(cpu, len(loaded) * costs.upload_s + device)

    found = np.flatnonzero(transferred(tokens, resident, costs))
    assert set(found) <= set(missing)
    every = (list(some) for n in range(len(missing) + 1) for some in combinations(missing, n))
    assert seconds(found) == pytest.approx(min(map(seconds, every)))


def test_scores_decay_and_the_lowest_goes():
    view = make_view([6], [2])
    subject = scheduler.make("hybrimoe")
    subject.on(Event.START, view)
    plan = subject.on(Event.VERIFY_END, verified(view, [[3, 0, 2, 1, 0, 0]]))
    assert np.flatnonzero(plan.wanted[0]).tolist() == [0, 2]
    held = np.array([[0, -1, 1, -1, -1, -1]], np.int32)
    plan = subject.on(Event.VERIFY_END, verified(view, [[0, 0, 0, 3, 0, 0]], slot_of=held))
    assert np.flatnonzero(plan.wanted[0]).tolist() == [0, 3], "scores 1/4, 1/6 and 7/12"
    slow_link = Costs((ExpertCosts(0, 1, 1, 1, 0.1, 90),), 0.0, 1.0, (1.0,), (1.0,))
    dear = verified(view, [[0, 3, 0, 0, 0, 0]], slot_of=held, costs=SimpleNamespace(costs=slow_link))
    assert not subject.on(Event.VERIFY_END, dear).wanted[0, 1], "the CPU is faster than this link"


# MoE-Infinity


def test_the_nearest_earlier_text_foretells(monkeypatch):
    monkeypatch.setattr(moe_infinity, "RECORDS", 2)
    view = make_view([6, 6], [4])
    subject = scheduler.make("moe-infinity")
    subject.on(Event.START, view)
    kinds = {1: [[3, 3, 0, 0, 0, 0], [0, 0, 3, 3, 0, 0]], 2: [[0, 0, 3, 3, 0, 0], [3, 3, 0, 0, 0, 0]]}
    for text, kind in kinds.items():
        subject.on(Event.VERIFY_END, verified(view, kind, text=text))
    first = [[0, 0, 3, 0, 0, 0], [0, 3, 0, 0, 0, 0]]  # like the second text
    plan = subject.on(Event.VERIFY_END, verified(view, first, text=3))
    assert [np.flatnonzero(row).tolist() for row in plan.wanted] == [[2, 3], [0, 1]]
    assert plan.priority[0, 3] > plan.priority[1, 0], "the nearer layer comes first"
    # The first record was never the nearest, so it makes room.
    subject.on(Event.VERIFY_END, verified(view, first, text=4))
    assert subject.state()["records"][0, 0, 2] == 1


# Profiled


def test_the_set_is_that_of_the_most_used_experts_whenever_the_tokens_have_doubled(monkeypatch):
    monkeypatch.setattr(profiled, "FIRST", 6)
    rng = np.random.default_rng(1)
    view = make_view([7, 5, 7], [3, 2], [0, 0, 1])
    subject = scheduler.make("profiled")
    plan = subject.on(Event.START, view)
    counts, chosen = np.zeros((3, 7), int), []
    for step in range(1, 17):
        demand = rng.integers(0, 4, (3, 7)) * view.exists
        counts += demand
        plan = subject.on(Event.VERIFY_END, verified(view, demand))
        if plan is None:
            continue
        chosen.append(3 * step)
        for members, n in (([0, 1], 3), ([2], 2)):
            wanted = counts[members][plan.wanted[members]]
            assert len(wanted) == n
            assert wanted.min() >= np.sort(counts[members], axis=None)[-n]
    assert chosen == [6, 12, 24, 48]


# All of them


@pytest.mark.parametrize("name", RIVALS)
def test_a_rival_uses_its_slots(name):
    learned, fixed = (replay(scheduler.make(each), local_demand(120), 24) for each in (name, "static"))
    assert learned.hit_rate_distinct > fixed.hit_rate_distinct


def test_a_text_becomes_a_record_of_moe_infinity_in_the_next_process():
    one, two = (scheduler.make("moe-infinity") for _ in range(2))
    view, demand = make_view([16] * 3, [24]), local_demand(2)
    for subject in (one, two):
        subject.on(Event.START, view)
    one.on(Event.VERIFY_END, verified(view, demand.counts[0], text=1))
    two.restore({key: value.copy() for key, value in one.state().items()})
    for subject in (one, two):
        subject.on(Event.VERIFY_END, verified(view, demand.counts[1], text=1))
    assert [int(each.state()["nearest"].astype(bool).sum()) for each in (one, two)] == [0, 1]


def test_every_rival_runs_and_changes_no_text(tiny_model):
    texts = set()
    for name in ("none", "moe-spac:paper", *RIVALS):
        with Engine(config(tiny_model("qwen3moe"), slots=0.5, scheduler=name)) as subject:
            generation = subject.generate([5], 6)
            texts.add("".join(generation))
            assert generation.stats.scheduler == name.partition(":")[0]
    assert len(texts) == 1


class Watched(MixtralOffloadingScheduler):
    def __init__(self):
        super().__init__()
        self.came = []

    def on(self, event, view):
        self.came.append((event, view.text, view.layer, int(np.count_nonzero(view.demand.any(axis=1)))))
        return super().on(event, view)


def test_an_engine_counts_texts_and_reports_layers(tiny_model):
    watched = Watched()
    with Engine(config(tiny_model("qwen3moe"), slots=0.5, scheduler=watched)) as subject:
        n_layer = len(subject.events.driver.layers)
        for _ in range(2):
            "".join(subject.generate([5], 3))
    steps = [each for each in watched.came if each[0] == Event.VERIFY_END]
    layers = [each for each in watched.came if each[0] == Event.VERIFY_LAYER]
    assert [text for _, text, *_ in steps] == [1] * (len(steps) // 2) + [2] * (len(steps) // 2)
    assert [layer for _, _, layer, _ in layers] == list(range(n_layer)) * len(steps)
    assert {n for *_, n in layers} == {1}

"""The learned scheduler: its predictions, its learning, its moves, and its fast form beside the reference."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spac import scheduler
from spac.config import SamplingConfig
from spac.costs import Costs, ExpertCosts
from spac.engine import Engine
from spac.errors import InputError
from spac.replay import Demand, replay
from spac.scheduler import Event, Layer, Plan, View
from spac.scheduler.logistic import LogisticScheduler
from tests.engine.conftest import config
from tests.scheduler.reference_logistic import FEATURES, Reference
from tests.scheduler.views import make_view, models

ONE = 1 << 20


def demand_of(routes: np.ndarray, n_expert: int, accepted: np.ndarray) -> Demand:
    """Return the demand of equal layers in steps of equal length. `routes` is int32 [T, L, tokens, U]."""
    n_step, n_layer, n_token, n_used = routes.shape
    counts = np.zeros((n_step, n_layer, n_expert), np.int32)
    at = np.indices(routes.shape)
    np.add.at(counts, (at[0], at[1], routes), 1)
    layers = tuple(Layer(f"layer {i}", n_expert, n_used, 1, 0) for i in range(n_layer))
    return Demand(layers, counts, np.full(n_step, n_token, np.int32), accepted.astype(np.int32), routes)


def chains(
    n_step: int, n_token: int, move: float, n_accepted: int, n_layer: int = 2, n_used: int = 2
) -> Demand:
    """Return a demand whose layers' tokens use neighbours on a ring of 24 experts. Each token moves on with
    probability `move`. Rejected tokens have the routes of the tokens that the next step has in their
    places."""
    rng = np.random.default_rng(3)
    n_expert, advance = 24, n_accepted + 1
    steps = rng.random((n_step * advance + n_token, n_layer)) < move
    start = np.cumsum(steps, axis=0)
    place = start[:, :, None] + np.arange(n_used)
    firsts = np.arange(n_step) * advance
    routes = np.stack([place[first : first + n_token] for first in firsts]) % n_expert
    routes = np.ascontiguousarray(routes.transpose(0, 2, 1, 3), np.int32)
    return demand_of(routes, n_expert, np.full(n_step, n_accepted))


def views(model: tuple[list[int], list[int], list[int]], seed: int, n_step: int) -> Iterator[View]:
    """Yield steps of random lengths and routes over a model, some without routes, and with new
    residents in each."""
    n_experts, pools, slots = model
    rng = np.random.default_rng(seed)
    start = make_view(n_experts, slots, pools)
    for number in range(n_step):
        n_token, n_used = int(rng.integers(1, 10)), int(rng.integers(1, min(n_experts) + 1))
        routes = np.full((len(n_experts), n_token, n_used), -1, np.int32)
        demand = np.zeros_like(start.demand)
        for layer, n_expert in enumerate(n_experts):
            for token in range(n_token if layer + 1 < len(n_experts) else int(rng.integers(1, n_token + 1))):
                routes[layer, token] = rng.permutation(n_expert)[:n_used]
                demand[layer, routes[layer, token]] += 1
        slot_of = np.where(start.exists & (rng.random(demand.shape) < 0.4), 0, -1).astype(np.int32)
        yield replace(
            start, demand=demand, slot_of=slot_of, step=number, n_verified=n_token, n_drafted=n_token - 1,
            n_accepted=int(rng.integers(0, n_token)), routes=routes if rng.random() < 0.9 else None,
        )  # fmt: skip


@settings(deadline=None, max_examples=60)
@given(models(), st.integers(0, 2**32), st.integers(1, 20), st.sampled_from([0.0, 0.1, 0.5, "auto"]))
def test_the_fast_step_is_the_reference(model, seed, n_step, margin):
    subjects = [LogisticScheduler(margin=margin, whole=False), Reference(margin=margin, whole=False)]
    costs = SimpleNamespace(costs=Costs((ExpertCosts.guessed(1 << 20),) * len(model[2]), 0, 0, (1,), (1e-6,)))
    for subject in subjects:
        subject.on(Event.START, make_view(model[0], model[2], model[1]))
    for number, view in enumerate(views(model, seed, n_step)):
        view = replace(view, costs=costs)
        fast, plain = (subject.on(Event.VERIFY_END, view) for subject in subjects)
        np.testing.assert_allclose(subjects[0].probability, subjects[1].probability, rtol=1e-5)
        # The rounded values may differ in the last bit.
        assert np.abs(fast.priority - plain.priority).max() <= 1
        limited = plain.threshold < np.iinfo(np.int32).max
        assert (limited == (fast.threshold < np.iinfo(np.int32).max)).all()
        assert np.abs(fast.threshold - plain.threshold)[limited].max(initial=0) <= 1
        if number == 5:  # the learned state moves from one form to the other
            for subject, state in zip(subjects, [each.state() for each in subjects[::-1]], strict=True):
                subject.restore(state)
    for name, value in subjects[0].state().items():
        np.testing.assert_allclose(value, subjects[1].state()[name], rtol=1e-5, atol=1e-7, err_msg=name)


@settings(deadline=None, max_examples=60)
@given(models(), st.integers(0, 2**32), st.integers(1, 30), st.sampled_from([LogisticScheduler, Reference]))
def test_plans_want_what_exists_and_what_fits(model, seed, n_step, kind):
    n_experts, pools, slots = model
    subject = kind(margin=0.1)
    assert not subject.on(Event.START, make_view(n_experts, slots, pools)).wanted.any()
    for view in views(model, seed, n_step):
        plan = subject.on(Event.VERIFY_END, view)
        probability = subject.probability
        assert (probability[view.exists] > 0).all()
        assert (probability[view.exists] < 1).all()
        assert (probability[~view.exists] == 0).all()
        assert not plan.wanted[~view.exists].any()
        raised = probability + 0.1 * (view.slot_of >= 0)
        np.testing.assert_allclose(plan.priority / ONE, raised, atol=1 / ONE)
        for pool, n_slots in enumerate(slots):
            members = np.array(pools) == pool
            wanted, values = plan.wanted[members], plan.priority[members]
            n_real = int(view.exists[members].sum())
            assert wanted.sum() >= min(n_slots, n_real)  # there are more only if the last ones tie
            if wanted.any():
                assert (values > values[wanted].min()).sum() < n_slots


def test_features_are_what_the_tokens_showed():
    subject = Reference()
    view = make_view([6], [3])
    subject.on(Event.START, view)
    routes = np.array([[[0, 1], [0, 2], [0, 3], [0, 3]]], np.int32)
    demand = np.array([[4, 1, 1, 2, 0, 0]], np.int32)
    step = replace(view, demand=demand, n_verified=4, n_drafted=3, n_accepted=1, routes=routes)
    subject.on(Event.VERIFY_END, step)
    features = dict(zip(FEATURES, subject.state()["features"][:, 0], strict=True))
    np.testing.assert_allclose(features["count"], np.sqrt([1, 1 / 4, 1 / 4, 1 / 2, 0, 0]))
    assert features["position"].tolist() == [1, 1 / 4, 2 / 4, 1, 0, 0]
    assert features["rejected"].tolist() == [1, 0, 0, 1, 0, 0]  # tokens 3 and 4: one draft was accepted
    assert features["recent"].tolist() == [1, 1, 1, 1, 0, 0]
    np.testing.assert_allclose(features["near"], features["count"] * (1 - 0.95**4))
    subject.on(Event.VERIFY_END, replace(step, demand=demand[:, ::-1].copy(), routes=None))
    recent, near, _, position, rejected = subject.state()["features"][1:6, 0]
    np.testing.assert_allclose(recent, [0.9**4, 0.9**4, 1, 1, 1, 1])
    assert near[0] == pytest.approx((1 - 0.95**4) * 0.95**4)
    assert not position.any()
    assert not rejected.any()


def test_it_learns_that_rejected_tokens_predict_the_next_step():
    """Counts do not separate the end of the last step from its beginning. The next step begins at the end."""
    demand = chains(300, n_token=9, move=0.9, n_accepted=2)
    names = ("lru", "ewma", "logistic", "moe-spac", "moe-spac:learned=off")
    rate = {name: replay(scheduler.make(name), demand, 12).hit_rate_distinct for name in names}
    blind = replay(LogisticScheduler(), replace(demand, routes=None), 12).hit_rate_distinct
    by_counts = max(rate["lru"], rate["ewma"], rate["moe-spac:learned=off"], blind)
    assert rate["logistic"] > by_counts + 0.1
    assert rate["moe-spac"] > by_counts + 0.1  # it orders experts of a level by this


def test_a_change_of_regime_is_followed_after_a_long_quiet():
    """Weights of experts that were silent for long stay finite and change again."""
    quiet, lively = (chains(100, n_token=9, move=move, n_accepted=2) for move in (0.0, 0.5))
    subject, fresh = LogisticScheduler(), LogisticScheduler()
    view = make_view([24, 24], [12])
    for each in (subject, fresh):
        each.on(Event.START, view)
    step = replace(
        view, demand=quiet.counts[0], routes=quiet.routes[0], n_verified=9, n_drafted=8, n_accepted=8
    )
    for _ in range(40000):  # afterwards, a G without changes would be 0 in double precision
        subject.on(Event.VERIFY_END, step)
    losses = []
    for each in (subject, fresh):
        errors = []
        for counts, routes in zip(lively.counts, lively.routes, strict=True):
            errors.append(float(np.mean(np.abs(each.probability - (counts > 0)))))
            now = {"demand": counts, "routes": routes, "n_verified": 9, "n_drafted": 8, "n_accepted": 2}
            each.on(Event.VERIFY_END, replace(view, **now))
        losses.append(np.mean(errors[-20:]))
    assert np.isfinite(subject.state()["weights"]).all()
    assert losses[0] < losses[1] + 0.05


class Watched(LogisticScheduler):
    """A scheduler that records every step's residents and probabilities, and which experts came and went."""

    def __init__(self, margin: float) -> None:
        super().__init__(margin=margin)
        self.before: tuple[np.ndarray, np.ndarray] | None = None
        self.moves: list[tuple[float, float]] = []

    def on(self, event: Event, view: View) -> Plan | None:
        if self.before is not None:
            resident, probability = self.before
            came, went = (view.slot_of >= 0) & ~resident, resident & (view.slot_of < 0)
            if went.any():
                self.moves.append((probability[came].min(), probability[went].max()))
        plan = super().on(event, view)
        self.before = (view.slot_of >= 0, self.probability.copy())
        return plan


@pytest.mark.parametrize("margin", [0.0, 0.05])
def test_nothing_is_evicted_for_less_than_the_margin(margin):
    subject = Watched(margin)
    uploads = replay(subject, chains(200, n_token=9, move=0.5, n_accepted=2), 12).uploads
    assert subject.moves
    assert all(came >= went + margin - 2 / ONE for came, went in subject.moves)
    assert uploads <= replay(LogisticScheduler(margin=0.0), chains(200, 9, 0.5, 2), 12).uploads


def test_a_spoilt_state_spoils_no_probability():
    subject, view = LogisticScheduler(), next(views(([5, 3], [0, 0], [4]), 0, 1))
    subject.on(Event.START, view)
    spoilt = {name: np.full_like(array, np.nan if array.dtype.kind == "f" else 77)
              for name, array in subject.state().items()}  # fmt: skip
    subject.restore(spoilt)
    subject.on(Event.VERIFY_END, view)
    subject.on(Event.VERIFY_END, view)
    assert np.isfinite(subject.probability).all()


def test_routes_of_an_expert_that_there_is_not_are_refused():
    subject = LogisticScheduler()
    view = make_view([4], [2], demand=[[1, 0, 0, 0]], n_verified=1)
    subject.on(Event.START, view)
    with pytest.raises(InputError, match="expert 4 of 4"):
        subject.on(Event.VERIFY_END, replace(view, routes=np.array([[[4]]], np.int32)))
    with pytest.raises(InputError, match="routes"):
        subject.on(Event.VERIFY_END, replace(view, routes=np.zeros((2, 1, 1), np.int32)))


class Seen(LogisticScheduler):
    def __init__(self) -> None:
        super().__init__()
        self.steps: list[tuple[np.ndarray, np.ndarray, int]] = []

    def on(self, event: Event, view: View) -> Plan | None:
        if event == Event.VERIFY_END:
            self.steps.append((view.demand.copy(), view.routes.copy(), view.n_verified))
        return super().on(event, view)


@pytest.mark.parametrize("family", ["qwen3moe", "deepseek2"])
def test_an_engine_shows_it_the_routes_behind_the_demand(tiny_model, family):
    target, subject = tiny_model(family), Seen()
    hot = SamplingConfig(temp=1.5, seed=3, ignore_eos=True)
    options = {"draft": target, "draft_length": 3, "slots": 0.3, "scheduler": subject, "sampling": hot}
    with Engine(config(target, **options)) as engine:
        "".join(engine.generate("def f(x):", 24))
    assert len({verified for *_, verified in subject.steps}) > 1 or len(subject.steps) > 5
    for demand, routes, verified in subject.steps:
        assert routes.shape[:2] == (demand.shape[0], verified)
        counts = np.zeros_like(demand)
        layer, token, place = np.nonzero(routes >= 0)
        np.add.at(counts, (layer, routes[layer, token, place]), 1)
        np.testing.assert_array_equal(counts, demand)

"""The driver turns events into complete plans."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np
import pytest

from spac.errors import InputError
from spac.scheduler import Event, Plan, Scheduler
from spac.scheduler.demand import DemandRecorder
from spac.scheduler.driver import Driver
from tests.scheduler.views import make_view


@dataclass
class FakeExperts:
    pool_slots: list[int] = field(default_factory=lambda: [6])
    submitted: list[tuple[np.ndarray, np.ndarray]] = field(default_factory=list)
    asked_for_routes: int = 0

    @property
    def layers(self):
        return list(make_view([5, 5, 5], self.pool_slots).layers)

    def residency(self):
        return np.full((3, 5), -1, np.int32)

    def routes(self):
        self.asked_for_routes += 1
        return np.full((3, 2, 1), self.asked_for_routes, np.int32)

    def submit(self, priority, threshold):
        self.submitted.append((priority.copy(), threshold.copy()))


class Scripted(Scheduler):
    name = "scripted"

    def __init__(self, *plans, events=None):
        self.plans = list(plans)
        self.seen = []
        self.events = frozenset(events or Event)

    def on(self, event, view):
        self.seen.append((event, view.step, int(view.demand.sum())))
        return self.plans.pop(0) if self.plans else None


STEP = SimpleNamespace(demand=np.eye(3, 5, dtype=np.int32), n_verified=2, n_accepted=1)


def plan(value, layers=None):
    return Plan(np.full((3, 5), value, np.int32), np.full(3, value, np.int32), layers)


def test_partial_plans_are_submitted_whole():
    experts = FakeExperts()
    driver = Driver(Scripted(plan(1), plan(7, np.array([True, False, False]))), experts)
    driver.start()
    driver.raised(Event.VERIFY_END, np.ones((3, 5), np.int32))
    assert [threshold.tolist() for _, threshold in experts.submitted] == [[1, 1, 1], [7, 1, 1]]


def test_plans_of_other_numbers_are_submitted_as_ranks():
    experts = FakeExperts()
    shares = np.array([[0.5, 0.25, 0.125, 0, 0]] * 3)
    partial = Plan(shares * 3, np.full(3, 0.5), np.array([True, False, False]))
    driver = Driver(Scripted(Plan(shares, np.full(3, 0.2)), partial), experts)
    driver.start()
    driver.raised(Event.VERIFY_END, np.ones((3, 5), np.int32))
    (_, _), (priority, threshold) = experts.submitted
    assert priority.dtype == threshold.dtype == np.int32
    assert priority.tolist() == [[7, 6, 4, 0, 0], [5, 3, 1, 0, 0], [5, 3, 1, 0, 0]]
    assert threshold.tolist() == [5, 2, 2]


def test_the_first_plan_may_be_partial():
    experts = FakeExperts()
    Driver(Scripted(plan(3, np.array([False, True, False]))), experts).start()
    priority, threshold = experts.submitted[0]
    assert (priority >= threshold[:, None]).any(axis=1).tolist() == [False, True, False]


def test_no_plan_leaves_the_last_one_standing():
    experts = FakeExperts()
    driver = Driver(Scripted(plan(1)), experts)
    driver.start()
    driver.raised(Event.VERIFY_END)
    assert len(experts.submitted) == 1


def test_only_the_events_asked_for_are_passed_on_and_steps_are_counted():
    scheduler = Scripted(events=[Event.VERIFY_END])
    driver = Driver(scheduler, FakeExperts())
    driver.start()
    for _ in range(2):
        driver.raised(Event.DRAFT_END, n_drafted=2)
        driver.raised(Event.VERIFY_END, np.ones((3, 5), np.int32))
    assert scheduler.seen == [(Event.VERIFY_END, 0, 15), (Event.VERIFY_END, 1, 15)]


@pytest.mark.parametrize("wants", [False, True])
def test_routes_are_shown_to_who_wants_them_after_a_verification(wants):
    class Routed(Scripted):
        wants_routes = wants

        def on(self, event, view):
            self.seen.append((event, view.routes is not None))

    scheduler, experts = Routed(), FakeExperts()
    driver = Driver(scheduler, experts)
    driver.start()
    for event in (Event.DRAFT_END, Event.VERIFY_END):
        driver.raised(event)
    assert scheduler.seen == [(Event.START, False), (Event.DRAFT_END, False), (Event.VERIFY_END, wants)]
    assert experts.asked_for_routes == wants


class Routes:
    """The target's routers choose 0, 1 and 2 for every token. Nothing is known of the layers of token 2."""

    def __init__(self):
        self.asked: list[list[int]] = []

    def ask(self, critical):
        self.asked.append(critical.tolist())

    def under_way(self, token, chosen):
        return None if token == 2 else self.at_end(1)

    def drafted(self, n):
        return self.at_end(n)

    def at_end(self, n):
        return np.tile(np.arange(3, dtype=np.int32), (3, n, 1))


class Watching(Scripted):
    routers = "target"
    critical = np.array([2, 1], np.int32)

    def on(self, event, view):
        shape = None if view.draft_routes is None else view.draft_routes.shape
        self.seen.append((event, view.layer, view.n_drafted, shape, view.draft_routes))


def test_the_targets_routes_are_shown_while_it_drafts():
    events = [Event.DRAFT_LAYER, Event.DRAFT_TOKEN, Event.DRAFT_END, Event.VERIFY_END]
    scheduler, routes = Watching(events=events), Routes()
    driver = Driver(scheduler, FakeExperts(), routes=routes)
    driver.drafted(Event.DRAFT_TOKEN, 1, None, step=0)
    driver.layer_drafted(1, np.zeros((2, 2), np.int32))
    driver.layer_drafted(2, np.zeros((2, 2), np.int32))
    driver.drafted(Event.DRAFT_END, 2, None, step=0)
    driver.raised(Event.VERIFY_END)
    driver.drafted(Event.DRAFT_END, 2, None, step=0)  # too late
    assert [each[:4] for each in scheduler.seen] == [
        (Event.DRAFT_TOKEN, -1, 1, (3, 1, 3)), (Event.DRAFT_LAYER, 1, 0, (3, 1, 3)),
        (Event.DRAFT_END, -1, 2, (3, 2, 3)), (Event.VERIFY_END, -1, 0, None),
    ]  # fmt: skip
    assert routes.asked == [[2, 1]]


def test_a_recorder_sees_more_of_the_targets_routes_than_the_scheduler():
    scheduler, routes = Watching(events=[Event.DRAFT_LAYER, Event.DRAFT_END]), Routes()
    driver = Driver(scheduler, FakeExperts(), routes=routes)
    driver.start()
    recorder = DemandRecorder(driver.layers)
    driver.record(recorder)
    driver.layer_drafted(1, np.zeros((3, 3), np.int32))
    driver.drafted(Event.DRAFT_END, 1, None, step=0)
    driver.recorder = None
    driver.drafted(Event.DRAFT_END, 1, None, step=0)  # the routers are still asked for more
    driver.raised(Event.VERIFY_END)
    assert [critical.tolist() for critical in (scheduler.critical, recorder.critical)] == [[2, 1], [5, 5, 5]]
    assert routes.asked == [[2, 1], [5, 5, 5], [2, 1]]
    assert [each[:2] for each in scheduler.seen] == [
        (Event.DRAFT_LAYER, 1), (Event.DRAFT_END, -1), (Event.DRAFT_END, -1),
    ]  # fmt: skip
    assert all(shown.tolist() == [[[0, 1, -1]], [[0, -1, -1]], [[-1] * 3]] for *_, shown in scheduler.seen)
    recorder.verified(STEP, np.zeros((3, 2, 1), np.int32))
    demand = recorder.demand
    assert demand is not None
    assert demand.of_target
    assert demand.draft_routes is not None
    assert demand.draft_routes.tolist() == [[[[0, 1, 2]]] * 3]


def test_a_draft_that_was_not_verified_is_not_recorded():
    recorder = DemandRecorder(make_view([5, 5, 5], [6]).layers)
    empty = recorder.demand
    assert empty is None
    for value, is_verified in ((1, True), (2, False), (3, True)):
        recorder.drafted(np.full((3, value, 1), value, np.int32))
        if is_verified:
            recorder.verified(STEP, np.zeros((3, 2, 1), np.int32))
    demand = recorder.demand
    assert demand is not None
    assert demand.draft_routes is not None
    assert demand.routes is not None
    assert demand.draft_routes[:, 0, :, 0].tolist() == [[1, -1, -1], [3, 3, 3]]
    assert demand.routes.shape == (2, 3, 2, 1)
    recorder.verified(STEP, np.zeros((3, 0, 0), np.int32))
    longer = recorder.demand
    assert longer is not None
    assert longer.routes is longer.draft_routes is None, "those of a step are unknown"
    assert longer.counts.tolist() == [STEP.demand.tolist()] * 3


@pytest.mark.parametrize("begun", [False, True])
def test_a_prompts_tokens_come_one_by_one(monkeypatch, begun):
    """The last layer computes no prompt. It is shown the routes of the token that was verified last."""
    prompt = np.array([[[0, 1], [1, 2]], [[1, 2], [2, 3]], [[-1, -1], [-1, -1]]], np.int32)
    views, experts = [], FakeExperts()
    scheduler = Scripted(*[plan(n) for n in range(4)])
    scheduler.wants_routes = scheduler.sees_prompts = True
    on = scheduler.on
    scheduler.on = lambda event, view: views.append(view) or on(event, view)
    driver = Driver(scheduler, experts)
    driver.start()
    if begun:
        monkeypatch.setattr(experts, "routes", lambda: np.array([[[0, 1]], [[1, 2]], [[3, 4]]], np.int32))
        driver.raised(Event.VERIFY_END, np.ones((3, 5), np.int32), n_verified=1)
    monkeypatch.setattr(experts, "routes", lambda: prompt)
    n_plans = len(experts.submitted)
    views.clear()
    driver.saw_prompt()
    last = [0, 0, 0, 1, 1] if begun else [0] * 5
    assert [view.demand.tolist() for view in views] == [
        [[1, 1, 0, 0, 0], [0, 1, 1, 0, 0], last], [[0, 1, 1, 0, 0], [0, 0, 1, 1, 0], last],
    ]  # fmt: skip
    assert all(view.n_verified == 1 and view.routes.shape == (3, 1, 2) for view in views)
    assert len(experts.submitted) == n_plans + 1
    assert driver.step == int(begun)


def test_a_plan_for_another_model_is_refused():
    wrong = Plan(np.zeros((2, 5), np.int32), np.zeros(2, np.int32))
    with pytest.raises(InputError, match="scripted"):
        Driver(Scripted(wrong), FakeExperts()).start()

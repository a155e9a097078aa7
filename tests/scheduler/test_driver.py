"""The driver turns events into complete plans."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest

from spac.errors import InputError
from spac.scheduler import Event, Plan, Scheduler
from spac.scheduler.demand import DemandRecorder
from spac.scheduler.driver import Driver
from tests.scheduler.views import make_view


@dataclass
class FakeExperts:
    """A model with 3 layers of 5 experts that records the submitted plans."""

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
    """A scheduler that returns prepared plans, one after another."""

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


def test_the_targets_routes_are_shown_while_it_drafts():
    class Routes:
        asked: ClassVar[list[list[int]]] = []

        def ask(self, critical):
            self.asked.append(critical.tolist())

        def under_way(self, token, chosen):
            return None if token == 1 else np.full((3, token, 2), -1, np.int32)

        def drafted(self, n):
            return f"{n} tokens"

        def at_end(self, n):
            return f"all {n}"

    class Watching(Scripted):
        routers = "target"
        critical = np.array([2, 1], np.int32)

        def on(self, event, view):
            self.seen.append((event, view.draft_routes, view.n_drafted, view.layer))

    events = [Event.DRAFT_LAYER, Event.DRAFT_TOKEN, Event.DRAFT_END, Event.VERIFY_END]
    scheduler = Watching(events=events)
    driver = Driver(scheduler, FakeExperts(), routes=Routes())
    driver.drafted(Event.DRAFT_TOKEN, 1, None, step=0)
    driver.layer_drafted(1, np.zeros((2, 2), np.int32))
    driver.layer_drafted(2, np.zeros((2, 2), np.int32))
    driver.drafted(Event.DRAFT_END, 2, None, step=0)
    driver.raised(Event.VERIFY_END)
    driver.drafted(Event.DRAFT_END, 2, None, step=0)  # too late
    event, routes, *counts = scheduler.seen.pop(1)
    assert (event, routes.shape, counts) == (Event.DRAFT_LAYER, (3, 2, 2), [1, 1]), "and nothing for token 1"
    assert scheduler.seen == [
        (Event.DRAFT_TOKEN, "1 tokens", 1, -1),
        (Event.DRAFT_END, "all 2", 2, -1),
        (Event.VERIFY_END, None, 0, -1),
    ]
    assert Routes.asked == [[2, 1]]


def test_a_recorder_sees_more_of_the_targets_routes_than_the_scheduler():
    class Routes:
        asked: ClassVar[list[list[int]]] = []

        def ask(self, critical):
            self.asked.append(critical.tolist())

        def under_way(self, token, chosen):
            return self.at_end(1)

        def at_end(self, n):
            return np.tile(np.arange(3, dtype=np.int32), (3, n, 1))

    class Watching(Scripted):
        routers = "target"
        critical = np.array([2, 1], np.int32)

        def on(self, event, view):
            self.seen.append((event, view.layer, view.draft_routes))

    scheduler = Watching(events=[Event.DRAFT_LAYER, Event.DRAFT_END])
    driver = Driver(scheduler, FakeExperts(), routes=Routes())
    driver.start()
    recorder = DemandRecorder(driver.layers)
    driver.record(recorder)
    driver.layer_drafted(1, np.zeros((3, 3), np.int32))
    driver.drafted(Event.DRAFT_END, 1, None, step=0)
    driver.recorder = None
    driver.drafted(Event.DRAFT_END, 1, None, step=0)  # the routers are still asked for more
    driver.raised(Event.VERIFY_END)
    assert [critical.tolist() for critical in (scheduler.critical, recorder.critical)] == [[2, 1], [5, 5, 5]]
    assert Routes.asked == [[2, 1], [5, 5, 5], [2, 1]]
    assert [(event, layer) for event, layer, _ in scheduler.seen] == [
        (Event.DRAFT_LAYER, 1), (Event.DRAFT_END, -1), (Event.DRAFT_END, -1),
    ]  # fmt: skip
    for _, _, routes in scheduler.seen:
        assert routes.tolist() == [[[0, 1, -1]], [[0, -1, -1]], [[-1, -1, -1]]]
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


def test_a_plan_for_another_model_is_refused():
    wrong = Plan(np.zeros((2, 5), np.int32), np.zeros(2, np.int32))
    with pytest.raises(InputError, match="scripted"):
        Driver(Scripted(wrong), FakeExperts()).start()

"""A scheduler that works while the next step computes sees the same steps, in the same order.

Whether it does is chosen by the times of steps, in turns.
"""

from __future__ import annotations

from dataclasses import dataclass
from queue import Queue
from threading import Event as Flag
from threading import get_ident
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from spac import env
from spac.config import EngineConfig
from spac.engine import Engine
from spac.engine.workers import StepWorker
from spac.model import devices
from spac.scheduler import Event, Plan, Scheduler, View
from tests.engine.conftest import config as usual


class Seen(Scheduler):
    """Keeps every view. It wants the experts of the last step resident, and may fail at a step."""

    name = "seen"
    wants_routes = True

    def __init__(self, fails_at: int = -1) -> None:
        self.views: list[tuple[Any, ...]] = []
        self.threads: set[int] = set()
        self._fails_at = fails_at

    def on(self, event: Event, view: View) -> Plan | None:
        if event == Event.START:
            return Plan.nothing(view.n_layer, view.n_expert)
        assert view.routes is not None
        self.threads.add(get_ident())
        counts = view.step, view.n_verified, view.n_drafted, view.n_accepted, view.text
        self.views.append((*counts, view.demand.copy(), view.routes.copy()))
        if len(self.views) == self._fails_at:
            raise ValueError("a fault of the scheduler")
        return Plan((view.demand > 0).astype(np.int32), np.ones(view.n_layer, np.int32))


@dataclass(frozen=True)
class Outcome:
    texts: list[str]
    seen: Seen
    steps: int


@pytest.fixture
def beside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(env.FORM.name, "schedule-beside")


def config(target: Any, **options: Any) -> EngineConfig:
    return usual(target, **{"slots": 6, **options})


def run(target: Any, **options: Any) -> Outcome:
    seen, texts, steps = Seen(), [], 0
    with Engine(config(target, scheduler=seen, **options)) as engine:
        for prompt in ("def f(", "x = 1"):
            generation = engine.generate(prompt, 24)
            texts.append("".join(generation))
            stats = generation.stats
            steps += stats.steps
    return Outcome(texts, seen, steps)


def test_values_are_followed_in_their_order() -> None:
    seen: Queue[tuple[int, int]] = Queue()
    may_go = Flag()

    def follow(value: int) -> None:
        may_go.wait(30)
        seen.put((value, get_ident()))

    worker = StepWorker(follow)
    worker.show(1)  # returns, though the function waits
    assert seen.empty()
    may_go.set()
    for value in (2, 3):
        worker.show(value)
    worker.wait()
    found = [seen.get_nowait() for _ in range(3)]
    assert [value for value, _ in found] == [1, 2, 3]
    assert {thread for _, thread in found}.isdisjoint({get_ident()})
    worker.close()


def test_what_fails_is_raised_once() -> None:
    def follow(value: int) -> None:
        if value == 1:
            raise ValueError("a fault of the scheduler")

    worker = StepWorker(follow)
    worker.show(1)
    with pytest.raises(ValueError, match="a fault of the scheduler"):
        worker.show(2)
    worker.show(3)
    worker.wait()
    worker.show(1)
    worker.drain()  # raises nothing
    with pytest.raises(ValueError, match="a fault of the scheduler"):
        worker.wait()
    worker.close()


def test_the_scheduler_sees_the_same(target: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"draft_type": "ngram-simple", "draft_length": 3}
    monkeypatch.setenv(env.FORM.name, "no-schedule-beside")
    usual = run(target, **options)
    monkeypatch.setenv(env.FORM.name, "schedule-beside")
    found = run(target, **options)
    assert found.texts == usual.texts
    assert found.seen.threads.isdisjoint({get_ident()})
    assert len(usual.seen.threads) == 1, "the loop's"
    assert found.steps == len(found.seen.views) == len(usual.seen.views)
    for now, before in zip(found.seen.views, usual.seen.views, strict=True):
        assert now[:5] == before[:5]
        assert all(np.array_equal(a, b) for a, b in zip(now[5:], before[5:], strict=True))


@pytest.mark.usefixtures("beside")
@pytest.mark.parametrize("fails_at", [1, 4, 7], ids=["first", "within", "last"])
def test_a_scheduler_that_fails_ends_the_text(target: Any, fails_at: int) -> None:
    """The error comes at the next step at the latest, or at the text's end."""
    with Engine(config(target, scheduler=Seen(fails_at))) as engine:
        with pytest.raises(ValueError, match="a fault of the scheduler"):
            "".join(engine.generate("def f(", 8))
        assert len("".join(engine.generate("def f(", 4))) > 0


@pytest.mark.usefixtures("beside")
def test_what_changes_between_steps(target: Any) -> None:
    """Slots and schedulers change while steps are followed. A scheduler that has left decides nothing."""
    first, second = Seen(), Seen()
    with Engine(config(target, scheduler=first)) as engine:
        generation = engine.generate("def f(", 40)
        pieces = [next(generation) for _ in range(8)]
        engine.set_slots(9)
        pieces += [next(generation) for _ in range(8)]
        engine.set_scheduler(second)
        n_first = len(first.views)
        pieces += [next(generation) for _ in range(8)]
        engine.set_scheduler("static")
        n_second = len(second.views)
        assert engine.events.driver is not None
        plan = engine.events.driver.plan
        text = "".join([*pieces, *generation])
        assert (len(first.views), len(second.views)) == (n_first, n_second)
        assert engine.events.driver.plan is plan
    assert n_first > 0
    assert n_second > 0
    with Engine(config(target, scheduler="none")) as engine:
        assert "".join(engine.generate("def f(", 40)) == text


@pytest.mark.parametrize(
    ("form", "threads", "shares", "used"),
    [("", 6, False, True), ("", 7, False, False), ("", 6, True, False), ("", 6, None, False),
     ("no-schedule-beside", 6, False, False), ("schedule-beside", 8, True, True)],
)  # fmt: skip
def test_a_gpu_with_free_cores_has_it(monkeypatch, form, threads, shares, used):
    """It needs two of the 8 cores. `shares` is None for no device."""
    monkeypatch.setattr(devices, "physical_cores", lambda: 8)
    monkeypatch.setenv(env.FORM.name, form)
    there: Any = [] if shares is None else [SimpleNamespace(shares_host_cores=shares)]
    assert devices.schedules_beside(there, threads) == used


@pytest.mark.usefixtures("beside")
def test_what_is_kept_has_every_step(target: Any, tmp_path: Any) -> None:
    state = tmp_path / "state.npz"
    with Engine(config(target, scheduler="ewma", state=str(state))) as engine:
        "".join(engine.generate("def f(", 12))
        driver = engine.events.driver
        assert driver is not None
        learned = {name: array.copy() for name, array in driver.scheduler.state().items()}
    with np.load(state) as kept:
        names = {name: key for name in learned for key in kept if key.endswith(name)}
        assert names.keys() == learned.keys()
        assert all(np.array_equal(kept[names[name]], array) for name, array in learned.items())

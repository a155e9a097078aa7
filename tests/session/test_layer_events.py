"""Every MoE layer of a verification has an event: its content, its time, and faults in its callback."""

from __future__ import annotations

import time

import numpy as np
import pytest

from spac.config import EngineConfig, SamplingConfig
from spac.engine import Engine
from spac.scheduler import Event, Plan, Scheduler
from tests.session.lab import GREEDY, prompt, take


@pytest.fixture
def session(lab, moe, other):
    return lab.session(lab.context(moe), lab.context(other), lab.experts(moe), draft_max=4, **GREEDY)


@pytest.fixture
def experts(lab, moe, session):
    return lab.experts(moe)


def fill(experts, n_resident):
    experts.attach_slots(experts.n_layer * experts.n_expert)
    priority = np.zeros((experts.n_layer, experts.n_expert), np.int32)
    priority[:, :n_resident] = 1
    experts.submit(priority, np.ones(experts.n_layer, np.int32))
    assert experts.settle(10)


@pytest.mark.parametrize("n_resident", [0, 2, 5])
def test_every_layer_comes_once_with_its_demand(session, experts, n_resident):
    fill(experts, n_resident)
    seen = []
    session.on("verify_layer", lambda event: seen.append((event.layer, event.demand.tolist())))
    session.prefill(prompt(30))
    assert seen == [], "a prompt is no verification"
    for _ in range(3):
        seen.clear()
        step = session.step()
        assert [layer for layer, _ in seen] == list(range(experts.n_layer))
        assert [demand for _, demand in seen] == step.demand.tolist()


def test_nobody_listens_any_more(session):
    seen = []
    session.on("verify_layer", seen.append)
    session.prefill([1, 2, 3])
    session.step()
    n = len(seen)
    assert n > 0
    session.on("verify_layer", None)
    session.step()
    assert len(seen) == n


@pytest.mark.parametrize("at", [0, 1, 2])
def test_an_exception_leaves_the_sequence_as_it_was(session, at):
    session.prefill(prompt(20))
    wanted = take(session, 6)
    session.prefill(prompt(20))
    layers = []

    def fail(event):
        layers.append(event.layer)
        if event.layer == at:
            raise RuntimeError("no")

    session.on("verify_layer", fail)
    before = session.tokens.tolist()
    for _ in range(2):
        layers.clear()
        with pytest.raises(RuntimeError, match="no"):
            session.step()
        assert session.tokens.tolist() == before
        assert layers == list(range(at + 1)), "the layers after it are not reported"
    session.on("verify_layer", None)
    assert take(session, 6) == wanted


class Recycler(Scheduler):
    """A scheduler that wants the next layers' experts, and gives away a layer's slots after it has run."""

    name = "recycler"
    events = frozenset({Event.START, Event.VERIFY_LAYER, Event.VERIFY_END})

    def __init__(self):
        self.layers, self.steps = [], 0

    def on(self, event, view):
        if event == Event.VERIFY_LAYER:
            self.layers.append(view.layer)
            time.sleep(0.002)  # copies run beside a layer that takes this time
            others = np.arange(view.n_layer) != view.layer
            assert not view.demand[others].any()
            assert view.demand[view.layer].sum() > 0
        elif event == Event.VERIFY_END:
            self.steps += 1
        # The layer that runs next comes first. The one that has run comes last.
        n = view.n_layer
        distance = (np.arange(n) - (view.layer + 1)) % n
        priority = np.repeat((n - distance)[:, None], view.n_expert, 1).astype(np.int32)
        return Plan(priority, np.ones(n, np.int32))


def run(target, scheduler, **options):
    sampling = SamplingConfig(temp=0.0, ignore_eos=True)
    config = EngineConfig(
        target=target, device="simulated", threads=1, ctx=512, sampling=sampling, slots=1 / 3,
        scheduler=scheduler, draft_length=4, draft_type="ngram-simple", **options,
    )  # fmt: skip
    with Engine(config) as engine:
        generation = engine.generate("def f(a, b): def f(a, b):", 24)
        return "".join(generation), generation.stats


def test_slots_are_recycled_within_a_step(moe):
    """There are slots for one of three layers. Each in turn has them, and the text stays the same."""
    recycler = Recycler()
    text, stats = run(moe, recycler)
    assert recycler.steps == stats.steps
    assert recycler.layers == list(range(3)) * stats.steps
    plain, _ = run(moe, "none")
    assert text == plain
    # There is more than one set of slots per step on average, so they moved while the step ran.
    assert stats.uploads > stats.slots
    assert stats.prediction is not None


def test_a_deterministic_engine_does_not_ask_within_a_step(moe):
    recycler = Recycler()
    run(moe, recycler, deterministic=True)
    assert recycler.layers == []
    assert recycler.steps > 0

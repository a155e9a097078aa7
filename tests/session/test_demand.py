"""The demand and the events of a step are those of the target's verification, and nothing else."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from spac import _core
from spac.config import SamplingConfig
from spac.engine import Engine
from spac.scheduler import Event, Plan, Scheduler
from tests.engine.conftest import config
from tests.session.lab import generate, prompt, submit

if TYPE_CHECKING:
    pass

HOT = SamplingConfig(temp=1.0, seed=2, ignore_eos=True)


def check(step: _core.Step, experts: _core.Experts) -> None:
    """Assert that every verified token wants n_used experts of every layer."""
    assert step.demand.shape == (experts.n_layer, experts.n_expert)
    assert step.demand.sum(axis=1).tolist() == [step.n_verified * layer.n_used for layer in experts.layers]
    assert step.demand.min() >= 0
    assert step.demand.max() <= step.n_verified
    assert not step.demand.flags.writeable


@pytest.mark.parametrize(("family", "draft_length"), [("qwen3moe", 0), ("deepseek2", 8), ("gpt-oss", 1)])
def test_demand_is_that_of_the_verified_tokens(lab, tiny_model, family, draft_length):
    """The draft model has experts of its own."""
    draft = tiny_model("qwen3moe", n_layer=2, n_expert=7, seed=5)
    engine = lab.engine(tiny_model(family), draft=draft, draft_length=draft_length, sampling=HOT)
    experts, drafted = engine.experts, []
    assert experts is not None

    def see(step: _core.Step) -> None:
        check(step, experts)
        drafted.append(step.n_drafted)

    engine.loop.on("verify_end", see)
    generate(engine, prompt(100), 1)
    demand, n_steps = experts.take_demand()
    assert (demand.sum(), n_steps, drafted) == (0, 0, []), "a prompt does not count"
    generate(engine, prompt(100), 12)
    assert max(drafted) == draft_length


@pytest.mark.parametrize("share", [2, 5])
def test_routes_are_the_demand_by_token(lab, moe, other, share):
    engine = lab.engine(moe, draft=other, draft_max=4, sampling=HOT)
    experts, lengths = engine.experts, []
    assert experts is not None
    submit(experts, share)

    def see(step: _core.Step) -> None:
        routes = experts.routes()
        lengths.append(step.n_drafted)
        assert routes.shape == (experts.n_layer, step.n_verified, experts.layers[0].n_used)
        sums = [np.bincount(layer[layer >= 0], minlength=experts.n_expert).tolist() for layer in routes]
        assert sums == step.demand.tolist()
        tokens = np.sort(routes, axis=2)
        assert (tokens[..., 1:] > tokens[..., :-1]).all(), "a token wants no expert of a layer twice"

    engine.loop.on("verify_end", see)
    for length in (4, 1, 0, 3):
        engine.fix_draft_length(length)
        generate(engine, prompt(40), 9)
    assert {0, 1, 3, 4} <= set(lengths)


def test_without_experts_there_is_none(lab, target):
    engine, seen = lab.engine(target), []
    engine.loop.on("verify_end", lambda step: seen.append((step.demand.shape, step.layer_costs.shape)))
    generate(engine, prompt(10), 3)
    assert set(seen) == {((0, 0), (0,))}


@pytest.mark.parametrize("n_resident", [2, 5])
def test_every_layer_comes_once_with_its_demand(lab, moe, other, n_resident):
    engine = lab.engine(moe, draft=other, draft_length=4)
    experts, seen, steps = engine.experts, list[tuple[int, list[int]]](), 0
    assert experts is not None
    submit(experts, n_resident)

    def see(step: _core.Step) -> None:
        nonlocal steps
        assert seen == list(enumerate(step.demand.tolist()))
        seen.clear()
        steps += 1

    engine.loop.on("verify_layer", lambda event: seen.append((event.layer, event.demand.tolist())))
    engine.loop.on("verify_end", see)
    generate(engine, prompt(30), 8)
    assert steps >= 2
    engine.loop.on("verify_layer", None)
    engine.loop.on("verify_end", None)
    generate(engine, prompt(30), 8)
    assert seen == []


def test_events_come_in_order_and_say_the_same(lab, target, other):
    engine, seen, steps = lab.engine(target, draft=other, draft_length=5, sampling=HOT), list[Any](), 0

    def drafted(event: _core.DraftToken) -> None:
        seen.append(event)
        time.sleep(0.01)

    def see(step: _core.Step) -> None:
        nonlocal steps
        *tokens, draft = seen
        assert isinstance(draft, _core.DraftEnd)
        assert [event.index for event in tokens] == list(range(step.n_drafted))
        assert [event.token for event in tokens] == draft.tokens.tolist()
        assert len(draft.tokens) == step.n_drafted
        assert draft.tokens[: step.n_accepted].tolist() == step.tokens[:-1].tolist()
        assert step.verify_ns > 0
        assert step.draft_ns >= draft.draft_ns >= 10_000_000 * step.n_drafted, "the draft goes on"
        seen.clear()
        steps += 1

    engine.loop.on("draft_token", drafted)
    engine.loop.on("draft_end", seen.append)
    engine.loop.on("verify_end", see)
    generate(engine, prompt(30), 10)
    assert steps > 2


# The times and work of every layer of a verification agree with demand, residency and the counters.


FIELDS = (
    "host_ns", "wait_ns", "host_activations", "host_distinct", "device_activations", "device_distinct",
    "loaded_distinct",
)  # fmt: skip


@pytest.mark.parametrize("n_resident", [0, 3, 5])
def test_both_sides_together(lab, moe, other, n_resident):
    engine = lab.engine(moe, draft=other, draft_length=4)
    experts, uploads = engine.experts, []
    generate(engine, prompt(40), 1)
    assert experts.stats["host_compute_ns"] > 0
    costs = experts.take_layer_costs()
    assert all(not costs[name].any() for name in FIELDS), "a prompt costs nothing"
    submit(experts, n_resident)
    before = dict(experts.stats)

    def see(step):
        nonlocal before
        on_device = np.where(experts.residency() >= 0, step.demand, 0)
        on_host = step.demand - on_device
        costs, now = step.layer_costs, dict(experts.stats)
        assert costs.dtype.names == FIELDS
        assert costs.shape == (experts.n_layer,)
        assert not costs.flags.writeable
        for name, demand in (("device", on_device), ("host", on_host)):
            assert costs[f"{name}_activations"].tolist() == demand.sum(axis=1).tolist()
            assert costs[f"{name}_distinct"].tolist() == (demand > 0).sum(axis=1).tolist()
        assert ((costs["host_ns"] > 0) == (costs["host_activations"] > 0)).all()
        if uploads:  # before the first step, the prompt has taken time too
            assert costs["host_ns"].sum() == now["host_compute_ns"] - before["host_compute_ns"]
            assert costs["wait_ns"].sum() == now["host_wait_ns"] - before["host_wait_ns"]
        uploads.append((step.upload_bytes, step.upload_ns))
        before = now

    engine.loop.on("verify_end", see)
    generate(engine, prompt(40), 8)
    stats = experts.stats
    assert uploads[0] == (stats["upload_bytes"], stats["upload_ns"])
    assert set(uploads[1:]) == {(0, 0)}


# A scheduler moves experts while a verification runs.


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
    fixed = {"slots": 1 / 3, "draft_length": 4, "draft_type": "ngram-simple"}
    with Engine(config(target, scheduler=scheduler, **fixed, **options)) as engine:
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


def test_a_deterministic_engine_does_not_ask_within_a_step(moe):
    recycler = Recycler()
    run(moe, recycler, deterministic=True)
    assert recycler.layers == []
    assert recycler.steps > 0

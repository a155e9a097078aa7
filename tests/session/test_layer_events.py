"""A scheduler moves experts while a verification runs."""

from __future__ import annotations

import time

import numpy as np

from spac.config import EngineConfig, SamplingConfig
from spac.engine import Engine
from spac.scheduler import Event, Plan, Scheduler


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


def test_a_deterministic_engine_does_not_ask_within_a_step(moe):
    recycler = Recycler()
    run(moe, recycler, deterministic=True)
    assert recycler.layers == []
    assert recycler.steps > 0

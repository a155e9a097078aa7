"""A prompt's last tokens are shown to the scheduler, wherever their experts were computed."""

from __future__ import annotations

import numpy as np
import pytest

from spac.config import EngineConfig, SamplingConfig
from spac.engine import Engine
from spac.scheduler import Plan, make
from spac.scheduler.driver import Driver

PROMPT = (np.arange(301) * 7 % 253).astype(np.int32)
N_TAIL = 32


def config(target, **options):
    defaults = {
        "device": "simulated", "threads": 1, "ctx": 512, "scheduler": "static",
        "slots": 5, "state": "off", "sampling": SamplingConfig(temp=0.0, ignore_eos=True),
    }  # fmt: skip
    return EngineConfig(target=target, **{**defaults, **options})


def tail(target, **options):
    """Return the routes of a prompt's last tokens, int32 [L, T, U]."""
    with Engine(config(target, **options)) as engine:
        assert engine.experts.settle(10)
        found = []
        engine.loop.on("prompt_tail", lambda: found.append(engine.experts.routes()))
        list(engine.generate(PROMPT, 1))
        assert engine.experts.stats["activations"] == 0  # no demand
        (routes,) = found
        engine.forget()
        list(engine.generate(PROMPT, 3))
        assert len(found) == 2  # steps have none
    return routes


def routes_that_count(target):
    """Return the routes of the whole prompt, as a verification notes them."""
    with Engine(config(target)) as engine:
        engine.experts.set_step_tokens(512)
        engine.experts.set_counting(True)
        list(engine.generate(PROMPT, 1))
        return engine.experts.routes()


def test_routes_are_the_same_wherever_a_prompt_is_computed(tiny_model):
    target = tiny_model("qwen3moe")
    expected = routes_that_count(target)[:, -N_TAIL:]
    last = len(expected) - 1
    assert (expected[:last] >= 0).all()
    for options in ({"stream_batch": 0}, {"stream_batch": 64}, {"stream_batch": 0, "slots": "100%"}):
        routes = tail(target, **options)
        assert routes.shape == expected.shape
        assert np.array_equal(routes[:last], expected[:last])
        assert (routes[last] >= 0).any(axis=1).sum() == 1  # only the last token has logits


def test_a_scheduler_that_asks_sees_prompts(tiny_model):
    """The slots then hold the experts of the prompt's last tokens, and the text stays the same."""
    target = tiny_model("qwen3moe")
    texts, used = [], tail(target, stream_batch=64)
    for scheduler in ("static", "logistic:margin=0"):
        with Engine(config(target, scheduler=scheduler, stream_batch=64)) as engine:
            list(engine.generate(PROMPT, 1))  # no step, which would change the slots
            assert engine.experts.settle(10)
            slot_of = engine.experts.residency()
            engine.forget()
            generation = engine.generate(PROMPT, 9)
            list(generation)
            texts.append(generation.tokens)
        if scheduler != "static":
            layers, experts = np.nonzero(slot_of >= 0)
            assert len(layers) == 5
            assert all(expert in used[layer] for layer, expert in zip(layers, experts, strict=True))
    assert texts[0] == texts[1]


class Mechanism:
    """Experts of two layers of four, each with two per token. The last layer computes no prompt."""

    pool_slots = (3,)

    def __init__(self):
        self.plans = []
        self.now = np.array([[[0, 1], [1, 2]], [[-1, -1], [-1, -1]]], np.int32)

    @property
    def layers(self):
        class Info:
            name, n_expert, n_used, expert_bytes, pool = "blk", 4, 2, 1, 0

        return [Info, Info]

    def residency(self):
        return np.full((2, 4), -1, np.int32)

    def routes(self):
        return self.now

    def submit(self, priority, _threshold):
        self.plans.append(priority.copy())


class Watching:
    """A scheduler's calls."""

    def __init__(self):
        self.scheduler, self.seen = make("logistic"), []
        inner = self.scheduler.on
        self.scheduler.on = lambda event, view: self.seen.append(view) or inner(event, view)


@pytest.mark.parametrize("begun", [False, True])
def test_tokens_come_one_by_one(begun):
    mechanism, watching = Mechanism(), Watching()
    driver = Driver(watching.scheduler, mechanism)
    driver.start()
    if begun:
        verified = np.array([[[0, 1]], [[2, 3]]], np.int32)
        mechanism.now, prompt = verified, mechanism.now
        demand = np.array([[1, 1, 0, 0], [0, 0, 1, 1]], np.int32)
        driver.raised("verify_end", demand, n_verified=1)
        mechanism.now = prompt
    n_plans, n_seen = len(mechanism.plans), len(watching.seen)
    driver.saw_prompt()
    views = watching.seen[n_seen:]
    last = [0, 0, 1, 1] if begun else [0, 0, 0, 0]
    assert [view.demand.tolist() for view in views] == [[[1, 1, 0, 0], last], [[0, 1, 1, 0], last]]
    assert all(view.n_verified == 1 and view.routes.shape == (2, 1, 2) for view in views)
    assert len(mechanism.plans) == n_plans + 1
    assert driver.step == int(begun)
    assert isinstance(driver.plan, Plan)

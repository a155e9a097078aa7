"""A prompt's last tokens are shown to the scheduler, wherever their experts were computed."""

import numpy as np

from spac.engine import Engine
from tests.engine.conftest import config as usual

PROMPT = (np.arange(301) * 7 % 253).astype(np.int32)
N_TAIL = 32


def config(target, **options):
    return usual(target, **{"scheduler": "static", "slots": 5, **options})


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


def test_routes_are_the_same_wherever_a_prompt_is_computed(target):
    expected = routes_that_count(target)[:, -N_TAIL:]
    last = len(expected) - 1
    assert (expected[:last] >= 0).all()
    for options in ({"stream_batch": 0}, {"stream_batch": 64}, {"stream_batch": 0, "slots": "100%"}):
        routes = tail(target, **options)
        assert routes.shape == expected.shape
        assert np.array_equal(routes[:last], expected[:last])
        assert (routes[last] >= 0).any(axis=1).sum() == 1  # only the last token has logits


def test_a_scheduler_that_asks_sees_prompts(target):
    """The slots then hold the experts of the prompt's last tokens, and the text stays the same."""
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

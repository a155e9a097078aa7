"""Slots lend their memory to a long prompt's graphs, and the text stays the same."""

from __future__ import annotations

import pytest

from spac import _core
from spac.engine import Engine
from spac.engine.lent_slots import LentSlots
from tests.engine.test_prompt_graphs import PROMPT, SMALL, config, engine_of, memory, run

N_SLOTS = 40
FREE = 256 << 10  # bytes of the device beside the slots


@pytest.fixture(autouse=True)
def unlimited():
    yield
    _core.set_memory_limit("simulated", 0)


@pytest.fixture(scope="module")
def target(tiny_model):
    return tiny_model("qwen3moe", n_expert=24, n_ff_exp=2048)


@pytest.fixture(scope="module")
def in_one_graph(target):
    with Engine(config(target, ubatch=2048, slots=N_SLOTS, context_params={})) as engine:
        return run(engine)


def lending(target):
    """Return an engine with little memory beside its slots, and what its slots were before each change."""
    engine = engine_of(target, slots=N_SLOTS, context_params={})
    engine.graphs.measure()
    _core.set_memory_limit("simulated", memory().used + FREE)
    changes, resize = [], engine.graphs._slots._resize
    engine.graphs._slots._resize = lambda n, free: (changes.append(n), resize(n, free))
    return engine, changes


def test_a_long_prompt_takes_fewer_slots_for_its_time(target, in_one_graph):
    (tokens, _, _) = in_one_graph
    engine, changes = lending(target)
    with engine:
        used = memory().used
        found = run(engine)
        assert found[0] == tokens
        fewer, after = changes
        assert 0 < fewer < after == N_SLOTS == engine.experts.slots.n_slots
        assert found[2] == SMALL  # the buffers gave the memory back
        assert memory().used <= used + 4096  # tables of masks
        assert memory().peak <= memory().limit
        assert sum("slots lend memory" in note for note in engine.notes) == 1
        assert engine.experts.settle(10)
        assert engine.experts.slots.n_resident == N_SLOTS
        # A short prompt needs none of it.
        engine.session.reset()
        run(engine, PROMPT[:300])
        assert len(changes) == 2


def test_slots_lend_nothing_where_it_costs_more_than_it_saves(target):
    engine, changes = lending(target)
    with engine:
        engine.graphs._streams.upload_s = lambda n_experts: 0.1 * n_experts
        assert run(engine)[2] == SMALL
        assert not changes


def test_lent_memory_that_does_not_suffice_loses_nothing(target, monkeypatch):
    with Engine(config(target, ubatch=SMALL, slots=N_SLOTS, context_params={})) as engine:
        tokens, _, _ = run(engine)
    monkeypatch.setattr(LentSlots, "left", lambda self, memory, n_tokens: N_SLOTS - 1)  # it is misled
    engine, changes = lending(target)
    with engine:
        assert run(engine)[0] == tokens
        assert changes == [N_SLOTS - 1, N_SLOTS]
        assert engine.experts.slots.n_slots == N_SLOTS
        assert memory().peak <= memory().limit
        assert sum("has no memory for graphs of" in note for note in engine.notes) == 1


def test_slots_that_were_changed_meanwhile_stay(target):
    engine, changes = lending(target)
    with engine:
        engine.session_with(temp=0.0, ignore_eos=True).on(
            "prompt_piece", lambda *_: engine.between.run(lambda: engine.experts.attach_slots(7))
        )
        run(engine)
        assert len(changes) == 1
        assert engine.experts.slots.n_slots == 7

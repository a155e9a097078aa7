"""Prompts whose experts stream through the device give the same text and leave the slots alone. Without
memory for the stream, they are split."""

import ctypes
import importlib

import numpy as np
import pytest

from spac import _core
from spac.engine import Engine
from spac.errors import SpacError
from spac.model import c_api
from tests.engine.conftest import config as usual
from tests.engine.conftest import memory

api = importlib.import_module("llama_cpp.llama_cpp")  # imported after spac, which chooses the library

PROMPT = "def double(values):\n    return [2 * value for value in values]\n\n" * 3


def config(target, stream_batch, **options):
    return usual(target, stream_batch=stream_batch, **options)


@pytest.fixture(scope="module")
def expected(target):
    with Engine(config(target, 0)) as engine:
        text = "".join(engine.generate(PROMPT, 24))
        assert engine.experts.stats["blocks_streamed"] == 0
    return text


def test_streamed_prompts_give_the_same_text(target, expected):
    with Engine(config(target, 16)) as engine:
        assert "".join(engine.generate(PROMPT, 24)) == expected
        stats = engine.experts.stats
        assert stats["blocks_streamed"] > 0
        assert stats["stream_bytes"] > engine.experts.stream_bytes()
        assert stats["activations"] > 0  # of the steps, which are not streamed


@pytest.mark.parametrize("slots", [3, 15])
def test_residents_do_not_come_over_the_link_again(target, expected, slots):
    """Every byte of a layer comes once: the residents' from their slots, the others' over the link."""
    with Engine(config(target, 16, scheduler="static", slots=slots)) as engine:
        experts = engine.experts
        assert experts.settle(10)
        resident = (experts.residency() >= 0).sum(axis=1)
        before = dict(experts.stats)
        assert "".join(engine.generate(PROMPT, 24)) == expected
        counts = {name: value - before[name] for name, value in experts.stats.items()}
        layers = experts.layers[:-1]  # the last layer computes only the last token's row
    assert resident.sum() == slots
    if slots == 15:  # nothing has to be brought together
        assert counts["blocks_streamed"] == counts["stream_bytes"] == counts["stream_slot_bytes"] == 0
        return
    n_graphs, rest = divmod(counts["blocks_streamed"], len(layers))
    assert n_graphs > 0
    assert rest == 0
    at_home = n_graphs * sum(int(n) * layer.expert_bytes for n, layer in zip(resident, layers, strict=False))
    everything = n_graphs * sum(layer.n_expert * layer.expert_bytes for layer in layers)
    assert counts["stream_slot_bytes"] == at_home
    assert counts["stream_bytes"] == everything - at_home


def test_a_prompt_leaves_the_slots_alone(target):
    with Engine(config(target, 16, scheduler="lru", slots="40%")) as engine:
        "".join(engine.generate("def f(x):", 24))
        assert engine.experts.settle(10)
        before = engine.experts.residency(), engine.experts.stats["uploads"]
        "".join(engine.generate(PROMPT, 1))  # The token comes with the prompt.
        assert engine.experts.settle(10)
        assert (engine.experts.residency() == before[0]).all()
        assert engine.experts.stats["uploads"] == before[1]


def test_slots_leave_room_for_the_stream(target):
    def free():
        return memory().free

    with Engine(config(target, 16, slots=0)) as engine:
        assert engine.experts.stream_bytes() > 0
        left = free() + engine.experts.stream_bytes()
    with Engine(config(target, 0, slots=0)) as engine:
        assert engine.experts.stream_bytes() == 0
        assert free() == left  # otherwise the stream's memory is allocated with the context
        experts = engine.experts
        experts.set_stream_tokens(16)  # here the first prompt allocates it
        margin = free() - experts.stream_bytes() - (64 << 10)
        with_room = experts.slots_that_fit(margin)
        experts.set_stream_tokens(0)
        assert experts.slots_that_fit(margin) > with_room


def test_a_prompt_that_is_given_up_gives_its_slots_back(target):
    """The next turn's experts are on their way when the graph ends, and no code will wait for them."""

    @ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_void_p)
    def give_up(_data):
        return experts.stats["blocks_streamed"] > 0

    with Engine(config(target, 16, scheduler="static", slots=7)) as engine:
        experts, context = engine.experts, engine._pair.target_context.pointer
        assert experts.settle(10)
        before = experts.residency() >= 0
        api.llama_set_abort_callback(context, give_up, None)
        with pytest.raises(SpacError):
            list(engine.generate(PROMPT, 1))
        api.llama_set_abort_callback(context, type(give_up)(), None)
        assert experts.stats["blocks_streamed"] == 1
        assert experts.stats["stream_slot_bytes"] > 0
        # This plan wants all experts that are not resident.
        experts.submit(np.where(before, 0, 1).astype(np.int32), np.ones(experts.n_layer, np.int32))
        assert experts.settle(10)
        assert not (before & (experts.residency() >= 0)).any()


@pytest.fixture
def heard():
    """Restore the log's callback, which other tests may have replaced."""
    c_api.listen()


@pytest.mark.usefixtures("heard")
def test_without_room_prompts_are_split(target, expected):
    with Engine(config(target, 0)) as engine:
        "".join(engine.generate(PROMPT, 24))  # allocates the other memory that the engine needs
        engine.forget()
        engine.experts.set_stream_tokens(16)
        _core.set_simulated_device(memory_mb=1)
        try:
            assert "".join(engine.generate(PROMPT, 24)) == expected
        finally:
            _core.set_simulated_device()
        assert engine.experts.stats["blocks_streamed"] == 0
        [note] = [note for note in engine.notes if "on their way" in note]
        assert "split" in note
        engine.forget()
        assert "".join(engine.generate(PROMPT, 24)) == expected
        assert engine.experts.stats["blocks_streamed"] > 0, "there is room again"

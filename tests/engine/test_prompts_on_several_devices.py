"""Long prompts on several devices run in large graphs too, as the memory of each device allows."""

import numpy as np
import pytest

from spac import _core
from spac.engine import Engine, prompt_graphs
from tests.engine.conftest import memory
from tests.engine.test_prompt_graphs import SMALL, WHOLE, config, run
from tests.slot_layers import layers_on_slot_devices

NAMES = ("simulated", "simulated1")
PLACES = {
    "layers": {"device": "simulated,simulated1", "tensor_split": "1,1"},
    "slots": {"slot_devices": "simulated1"},
}
N_SLOTS = 40


@pytest.fixture(autouse=True)
def devices():
    _core.set_simulated_device(index=1)
    yield
    _core.set_memory_limit(NAMES[1], 0)


@pytest.fixture(scope="module")
def target(tiny_model):
    return tiny_model("qwen3moe", n_expert=24, n_ff_exp=2048)


@pytest.fixture(scope="module")
def in_one_graph(target):
    with Engine(config(target, ubatch=2048, slots=N_SLOTS, context_params={})) as engine:
        return run(engine)


@pytest.mark.parametrize("places", PLACES.values(), ids=PLACES)
def test_one_graph_serves_a_long_prompt(target, in_one_graph, places):
    with (
        layers_on_slot_devices(2),
        Engine(config(target, slots=N_SLOTS, context_params={}, **places)) as engine,
    ):
        tokens, probabilities, size = run(engine)
        assert size == WHOLE
        assert tokens == in_one_graph[0]
        assert np.array_equal(probabilities, in_one_graph[1])
        assert len(engine.experts.devices) == 2
        assert all(engine.graphs.memory.more(name, WHOLE) > 0 for name in NAMES)


def test_a_device_without_room_keeps_graphs_small(target, in_one_graph):
    with Engine(config(target, slots=4, context_params={}, **PLACES["layers"])) as engine:
        engine.graphs.measure()
        _core.set_memory_limit(NAMES[1], memory(NAMES[1]).used + (8 << 10))
        assert run(engine)[0] == in_one_graph[0]
        assert engine._pair.target_context.graph_tokens == SMALL
        assert not any("has no memory for graphs" in note for note in engine.notes)


def test_slots_of_auto_leave_room_on_each_device(target, monkeypatch):
    monkeypatch.setattr(prompt_graphs, "ROOM_SHARE", 0.5)  # The model is small beside its buffers.
    places = {**PLACES["layers"], "slots": "auto", "vram_limit": "44M"}

    def slots(**options):
        settings = config(target, **{**places, "context_params": {}, **options})
        with layers_on_slot_devices(2), Engine(settings) as engine:
            return [each.slots.n_slots for each in engine.experts.devices]

    every, fewer = slots(ubatch=SMALL), slots()
    assert all(0 < n < most for n, most in zip(fewer, every, strict=True)), (fewer, every)

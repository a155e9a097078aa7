"""An engine with devices that hold slots alone (`--slot-devices`): the text is that of the CPU.

tests/backend/test_slot_devices.py compares every logit with the unpatched library.
"""

from pathlib import Path

import pytest

from spac import _core
from spac.demo import TARGET
from spac.engine import Engine
from spac.errors import InputError, OutOfMemoryError
from spac.model.devices import devices_of
from spac.model.gguf.check import check_model
from spac.model.slot_layers import SlotLayers
from tests.engine.conftest import config, text_of
from tests.slot_layers import layers_on_slot_devices


@pytest.fixture(autouse=True)
def devices():
    """Three simulated devices of different size and speed."""
    _core.set_simulated_device(memory_mb=256)
    _core.set_simulated_device(memory_mb=64, upload_gb_s=0.5, latency_us=5, index=1)
    _core.set_simulated_device(memory_mb=32, index=2)
    yield
    for index in (1, 2):
        _core.set_simulated_device(index=index)


@pytest.fixture(scope="module")
def target(tiny_model):
    return tiny_model("qwen3moe", n_layer=5, n_expert=6)


@pytest.fixture(scope="module")
def start(target):
    def engine(layers=(3,), **options):
        with layers_on_slot_devices(*layers):
            return Engine(config(target, **{"slot_devices": "simulated1", "slots": 12, **options}))

    return engine


def layers_of(engine):
    return {each.name: each.n_layer for each in engine.experts.devices}


@pytest.fixture(scope="module")
def expected(start):
    with start(device="cpu", slot_devices=None) as engine:
        return text_of(engine)


TWO = {"simulated": 2, "simulated1": 3}
OPTIONS = {
    "what fits": ({"slots": "auto"}, TWO),
    "lookahead": ({"lookahead": 1}, TWO),
    "loaded misses": ({"miss": "load"}, TWO),
    "streamed prompts": ({"stream_batch": 8}, TWO),
    "several at once": ({"parallel": 2}, TWO),
    "layers on the CPU": ({"gpu_layers": 3, "layers": (1,)}, {"simulated": 1, "simulated1": 1}),
    "all layers": ({"layers": (5,)}, {"simulated1": 5}),
    "one of the main devices": ({"device": "simulated,simulated2", "split_mode": "none"}, TWO),
    "two further ones": (
        {"slot_devices": "simulated2,simulated1", "layers": (1, 2)},
        {"simulated": 2, "simulated2": 1, "simulated1": 2},
    ),
}


@pytest.mark.parametrize(("options", "layers"), OPTIONS.values(), ids=OPTIONS)
def test_the_text_is_that_of_the_cpu(start, expected, options, layers):
    with start(**options) as engine:
        assert text_of(engine) == expected
        assert text_of(engine) == expected
        assert layers_of(engine) == layers
        assert sum(each.activations_hit for each in engine.experts.devices) > 0


def test_drafts_and_changing_slots_change_no_text(start, expected, draft):
    """The draft is on the main device."""
    with start(draft=draft, draft_length=3) as engine:
        for slots in (12, 30, 1):
            engine.set_slots(slots)
            assert text_of(engine) == expected
        stats = engine._last_stats()
        assert stats.drafted_tokens > 0
        assert [(each["name"], each["layers"]) for each in stats.devices] == list(TWO.items())
        notes = [note for note in engine._notes if note.startswith("--slot-devices")]
        assert notes == ["--slot-devices: layers whose experts have slots: 2 on simulated, 3 on simulated1"]
        assert [device.name for device in engine.devices] == ["simulated", "simulated1"]
        engine.set_vram_limit("20M")
        assert all(device.memory.limit == 20 << 20 for device in engine.devices)
        assert text_of(engine) == expected


def test_a_step_is_counted_once(start):
    """The second device has a graph for each layer."""
    with start() as engine:
        context = engine._pair.target_context.pointer
        engine.experts.set_counting(True)
        for position in range(3):
            assert _core.decode(context, [5], position, True) == 0
            _core.logits(context, 1)
            demand, n_graphs = engine.experts.take_demand()
            assert n_graphs == 1
            assert demand.sum() == 5 * engine.experts.layers[0].n_used


def test_a_model_without_experts_has_no_use_for_them(draft):
    with Engine(config(draft, slot_devices="simulated1", slots="auto")) as engine:
        assert f"--slot-devices: not used, for {draft.name} has no experts" in engine._notes
        assert [device.name for device in engine.devices] == ["simulated"]


def counts(target, *, main, other, **options):
    """Return how many of five layers a second device gets, by the memory of both in MiB."""
    _core.set_simulated_device(memory_mb=main)
    _core.set_simulated_device(memory_mb=other, index=1)
    chosen = config(target, slot_devices="simulated1", ctx=256, batch=64, ubatch=64, **options)
    (first, *others), _ = devices_of(chosen)
    return SlotLayers(chosen, check_model(target, "target"), first, others, None).counts


def test_layers_are_divided_by_memory():
    """The main device needs memory for dense weights and the cache, and gets all layers that fit there."""
    assert counts(TARGET, main=256, other=64) == (0,)
    assert counts(TARGET, main=16, other=256)[0] in (2, 3, 4)
    assert counts(TARGET, main=1, other=256) == (5,)
    less = counts(TARGET, main=14, other=8)[0]
    assert 0 < less < counts(TARGET, main=10, other=10)[0] <= 5


BAD = {
    "slot_devices: unknown device 'simulated9': choose one of .*simulated": {"slot_devices": "simulated9"},
    "slot_devices: simulated1 is named twice": {"slot_devices": "simulated1,Simulated1"},
    "slot_devices: 'cpu' is no device that can hold slots": {"slot_devices": "cpu"},
    "slot_devices: '' is no device": {"slot_devices": ","},
    "slot_devices: simulated would hold the layers too": {"slot_devices": "simulated"},
    "slot_devices: simulated1 is a device of the layers": {"device": "simulated,simulated1"},
    r"slot_devices goes with one device for the layers, and there are 2": {"device": "simulated,simulated2"},
    "slot_devices: the layers would be on the CPU": {"device": "cpu"},
    "slot_devices does not go with rpc": {"rpc": "127.0.0.1:50052"},
    "main_gpu 1: there is one device": {"main_gpu": 1},
    "tensor_split 1,1 has 2 parts, and there is one device": {"tensor_split": "1,1"},
    "draft-type self needs all experts on the main device": {"draft_type": "self"},
}  # fmt: skip


@pytest.mark.parametrize(("line", "options"), BAD.items(), ids=BAD)
def test_bad_input_is_one_line(line, options):
    with pytest.raises(InputError, match=line) as error:
        devices_of(config(Path("x.gguf"), **{"slot_devices": "simulated1", **options}))
    assert "\n" not in str(error.value)


def test_what_does_not_fit_the_model_is_one_line(start, draft):
    with pytest.raises(InputError, match=r"scheduler 'sp-moe'"):
        start(draft=draft, scheduler="sp-moe")
    _core.set_simulated_device(memory_mb=1, index=1)
    with pytest.raises(InputError, match="slot_devices: simulated1 has no memory for an expert of"):
        start(layers=())
    with pytest.raises(OutOfMemoryError, match="; leave simulated1 out of --slot-devices, or") as error:
        start(layers=(2,))
    assert "\n" not in str(error.value)

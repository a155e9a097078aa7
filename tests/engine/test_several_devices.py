"""An engine on several devices, unequal ones: the text is that of the CPU, whatever moves meanwhile.

tests/backend/test_several_devices.py compares every logit with the unpatched library.
"""

import pytest

from spac import _core
from spac.config import EngineConfig
from spac.engine import Engine
from spac.errors import InputError, OutOfMemoryError
from spac.model.devices import choose_devices, devices_of
from spac.report.figures import read
from spac.stats.recording import Recorder
from tests.engine.conftest import config, text_of

NAMES = "simulated,simulated1"


@pytest.fixture(autouse=True)
def devices():
    """Two simulated devices of different size and speed."""
    _core.set_simulated_device(memory_mb=256)
    _core.set_simulated_device(memory_mb=64, upload_gb_s=0.5, latency_us=5, index=1)
    yield
    _core.set_simulated_device(index=1)


@pytest.fixture(scope="module")
def target(tiny_model):
    return tiny_model("qwen3moe", n_layer=5, n_expert=6)


@pytest.fixture(scope="module")
def start(target):
    split = {"device": NAMES, "tensor_split": "1,1", "slots": 12}
    return lambda **options: Engine(config(target, **{**split, **options}))


@pytest.fixture(scope="module")
def expected(start):
    with start(device="cpu") as engine:
        return text_of(engine)


OPTIONS = {
    "what fits": {"slots": "auto"},
    "lookahead": {"lookahead": 1},
    "misses loaded by recency": {"miss": "load", "scheduler": "lru"},
    "streamed prompts": {"stream_batch": 8},
    "deterministic": {"deterministic": True},
    "layers on the CPU": {"gpu_layers": 3},
    "three to one by memory": {"tensor_split": None},
    "none on the first": {"tensor_split": "0,1"},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_the_text_is_that_of_the_cpu(start, expected, options):
    with start(**options) as engine:
        assert text_of(engine) == expected
        assert text_of(engine) == expected


@pytest.mark.parametrize("options", [{"main_gpu": 1}, {"gpu_layers_draft": 0}, {"parallel": 2}], ids=str)
def test_drafts_change_no_text(start, expected, draft, options):
    """The draft is on the main GPU."""
    with start(draft=draft, draft_max=4, **options) as engine:
        assert text_of(engine) == expected
        assert engine.device.name == NAMES.split(",")[options.get("main_gpu", 0)]
        stats = engine.batch_stats if options.get("parallel") else engine._last_stats()
        assert stats.drafted_tokens > 0


def test_slots_move_and_change_while_it_generates(start, expected):
    with start(slots=10) as engine:
        for slots in (4, 30, 1, "auto"):
            engine.set_slots(slots)
            assert text_of(engine) == expected
        assert engine.experts.slots.n_slots == 30
        engine.set_vram_limit("20M")
        assert all(device.memory.limit == 20 << 20 for device in engine.devices or ())
        assert text_of(engine) == expected
        engine.set_vram_limit(None)
        with pytest.raises(InputError, match=r"vram_limit: .* of simulated is less than the .* give more"):
            engine.set_vram_limit(1000)


def test_a_copy_that_fails_on_one_device_leaves_its_expert_to_the_cpu(start, expected):
    _core.set_simulated_device(memory_mb=64, fail_uploads=3, index=1)
    with start(slots="100%") as engine:
        assert text_of(engine) == expected
        first, second = engine.experts.devices
        assert first.upload_failures == 0
        assert second.upload_failures > 0  # the writes that fail may belong to one expert


def test_a_device_with_less_room_has_fewer_slots(start):
    """The others get the rest. Slots that no device can hold are refused with the number that fits."""
    with start() as engine:
        first, second = engine.experts.devices
        assert (first.n_experts, second.n_experts) == (18, 12)
        assert (first.slots.n_slots, second.slots.n_slots) == (7, 5)
        device, expert = engine.devices[1], second.slots.bytes // second.slots.n_slots
        used = next(each.memory.used for each in _core.devices() if each.name == device.name)
        _core.set_memory_limit(device.name, used - second.slots.bytes + 3 * expert + 4096)
        engine.set_slots(20)
        first, second = engine.experts.devices
        assert 2 <= second.slots.n_slots <= 3
        assert first.slots.n_slots + second.slots.n_slots == 20
        with pytest.raises(InputError, match=r"slots: 30 do not fit into simulated,simulated1: 2[01] would"):
            engine.set_slots(30)


def test_a_device_that_is_too_small_is_named(start):
    _core.set_simulated_device(memory_mb=1, index=1)
    with pytest.raises(OutOfMemoryError, match="simulated1") as error:
        start()
    assert "\n" not in str(error.value)


def test_statistics_and_recordings_have_each_device(start, tmp_path):
    with start() as engine:
        recorder = Recorder(tmp_path / "run.npz")
        generation = engine.generate("x", 16, recorder=recorder)
        "".join(generation)
        stats = generation.stats
        recorder.write(stats)
    recording = read(str(tmp_path / "run.npz")).content["experts"]
    assert recording["devices"] == ["simulated", "simulated1"]
    assert [layer["device"] for layer in recording["layers"]] == [0, 0, 0, 1, 1]
    assert stats.device == NAMES
    first, second = stats.devices
    assert (first["name"], second["name"]) == ("simulated", "simulated1")
    assert (first["layers"], second["layers"]) == (3, 2)
    assert first["slots"] + second["slots"] == stats.slots
    assert first["uploads"] + second["uploads"] == stats.uploads
    assert first["activations"] + second["activations"] == stats.activations
    assert first["vram_bytes"] + second["vram_bytes"] == stats.vram_bytes
    assert "simulated1  2 layers" in stats.table()
    with start(split_mode="none", main_gpu=1, tensor_split=None) as engine:
        assert [device.name for device in engine.devices] == ["simulated1"]
        text_of(engine)
        assert engine._last_stats().devices == []


def test_what_needs_one_device_is_refused(start, draft):
    with pytest.raises(InputError, match=r"self needs all experts on one device.*--split-mode none"):
        start(draft_type="self")
    with pytest.raises(InputError, match=r"scheduler 'sp-moe'"):
        start(draft=draft, scheduler="sp-moe")


BAD = {
    "unknown device 'simulated9': choose one of auto": {"device": "simulated,simulated9"},
    "simulated is named twice": {"device": "simulated,simulated"},
    "cpu cannot be one of several": {"device": "simulated,cpu"},
    r"main_gpu 2: there are 2 \(simulated, simulated1\): give 0 to 1": {"main_gpu": 2},
    "tensor_split 1,2,3 has 3 parts": {"tensor_split": "1,2,3"},
    "tensor_split: '1,x' is not a list": {"tensor_split": "1,x"},
    "split_mode: 'row' divides each matrix": {"split_mode": "row"},
    "split_mode: 'rows' is not one of none, layer": {"split_mode": "rows"},
}


@pytest.mark.parametrize(("line", "options"), BAD.items(), ids=BAD)
def test_bad_input_is_one_line(line, options):
    with pytest.raises(InputError, match=line) as error:
        devices_of(EngineConfig(target="x.gguf", **{"device": NAMES, **options}))
    assert "\n" not in str(error.value)


def test_the_environment_makes_further_devices(monkeypatch):
    monkeypatch.setenv("SPAC_SIMULATED_DEVICE", "memory_mb=32;memory_mb=16,latency_us=2;")
    found = choose_devices("simulated,simulated1,simulated2")
    assert [device.memory.total for device in found[:2]] == [32 << 20, 16 << 20]
    assert _core.simulated_device(1)["latency_us"] == 2

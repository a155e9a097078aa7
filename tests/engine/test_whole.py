"""A model whose experts all fit runs without the split. What needs the split, or does not fit, keeps it."""

from contextlib import closing

import numpy as np
import pytest

from spac import _core, demo, env
from spac.config.values import GpuLayers, VramLimit
from spac.doctor.devices import vram
from spac.doctor.selftest import decode
from spac.engine import Engine
from spac.engine.costs_in_use import key_of
from spac.errors import InputError
from spac.llama_cpp_python.llama import Llama
from spac.model import placement
from spac.model.devices import choose_devices
from spac.model.gguf.check import check_model
from spac.model.pair import ModelPair
from spac.model.whole import all_fit
from spac.serve.admin import change_memory
from spac.serve.refusal import Refusal
from tests.engine.conftest import config, text_of

NOTE = "all experts fit on simulated: llama.cpp computes the model there, without the split"


@pytest.fixture(autouse=True)
def whole(monkeypatch):
    """Let the simulated device run models without the split, as a GPU does. Give it its memory back."""
    monkeypatch.setattr("spac.model.whole.gains_on", lambda _devices: True)
    yield
    _core.set_simulated_device(index=1)
    _core.set_memory_limit("simulated1", 0)


DRAFTS = {
    "none": {},
    "draft with experts": {"draft": demo.TARGET, "draft_length": 3},
    "governor": {"draft": demo.DRAFT, "draft_max": 4},
    "ngram": {"draft_type": "ngram-simple", "draft_length": 3},
    "several": {"draft": demo.DRAFT, "draft_length": 2, "parallel": 2},
}


@pytest.mark.parametrize("drafts", DRAFTS.values(), ids=DRAFTS)
def test_the_text_is_that_of_the_split_with_all_experts(drafts):
    with Engine(config(demo.TARGET, slots="100%", **drafts)) as engine:
        assert engine.experts is not None
        wanted = text_of(engine)
    with Engine(config(demo.TARGET, **drafts)) as engine:
        assert engine.experts is None
        assert engine.costs is None
        assert NOTE in engine.notes
        assert text_of(engine) == wanted


@pytest.mark.parametrize("family", ["qwen3moe", "gpt-oss", "deepseek2"])
def test_logits_are_those_of_the_split(tiny_model, family):
    """All logits of a prompt and of single tokens are equal, bit for bit."""
    target = tiny_model(family)
    tokens = np.random.default_rng(0).integers(0, 200, 40).tolist()

    def logits(**options):
        with closing(ModelPair(config(target, **options), None)) as pair:
            parts = [tokens[:32], *([token] for token in tokens[32:])]
            starts = [0, *range(32, 40)]
            return np.concatenate(
                [decode(pair, *each) for each in zip(parts, starts, strict=True)]
            ), pair.placement.whole

    (wanted, split), (found, whole) = logits(slots="100%"), logits()
    np.testing.assert_array_equal(found, wanted)
    assert wanted.shape[0] == 40
    assert np.ptp(wanted) > 0
    assert (split, whole) == (False, True)


def test_statistics_are_those_of_a_model_without_experts():
    with Engine(config(demo.TARGET, draft=demo.DRAFT, draft_length=2)) as engine:
        generation = engine.generate("x", 24)
        list(generation)
        stats = generation.stats
    assert stats.n_experts == stats.slots == stats.activations == 0
    assert stats.hit_rate is None
    assert stats.scheduler == "none"
    assert stats.vram_bytes > demo.TARGET.stat().st_size * 0.9  # The experts are on the device.
    assert "experts" not in stats.table()
    assert "hit rate" not in stats.table()


def test_the_simulated_device_keeps_the_split(monkeypatch):
    monkeypatch.undo()
    with closing(ModelPair(config(demo.TARGET), None)) as pair:
        assert pair.experts is not None
        assert not pair.placement.whole


ASKING = {
    "slots": {"slots": "100%"},
    "scheduler": {"scheduler": "lru"},
    "options": {"scheduler": "logistic:whole=off"},
    "misses": {"miss": "load"},
    "lookahead": {"lookahead": 1},
    "streams": {"stream_batch": 64},
    "paging": {"paging": "on"},
    "state": {"state": "state.json"},
    "self": {"draft_type": "self"},
    "a recording": {"keeps_split": "--record"},
    "slot devices": {"slot_devices": ("simulated1",)},
    "layers": {"gpu_layers": 2},
}


@pytest.mark.parametrize("options", ASKING.values(), ids=ASKING)
def test_what_needs_the_split_keeps_it(tiny_model, options):
    info = check_model(tiny_model("qwen3moe"))
    devices = choose_devices("simulated")
    asking = config(info.path, **options)
    assert all_fit(config(info.path), info, None, devices)
    assert all_fit(config(info.path, gpu_layers=GpuLayers(99)), info, None, devices)
    assert not all_fit(asking, info, None, devices) or asking.keeps_split
    if "slot_devices" not in options:
        with closing(ModelPair(asking, None)) as pair:
            assert not pair.placement.whole
            assert pair.experts is not None
            assert not asking.keeps_split or "all experts fit on simulated: --record" in pair.notes


def test_a_limit_decides_too():
    with Engine(config(demo.TARGET, vram_limit="2G")) as engine:
        assert engine.experts is None
    with Engine(config(demo.TARGET, vram_limit="18M")) as engine:
        assert 0 < engine.experts.slots.n_slots < engine.n_experts


@pytest.mark.parametrize("left", [-8, 1], ids=["the model does not fit", "too little is left"])
@pytest.mark.parametrize("door", ["engine", "llama"])
def test_a_wrong_estimate_ends_in_the_split(monkeypatch, left, door):
    """Loading fails, or leaves less than the margin, and nothing is lost."""
    with closing(ModelPair(config(demo.TARGET), None, all_rows=False)) as pair:
        taken = pair.placement.devices[0].memory.used
    monkeypatch.setattr(placement, "all_fit", lambda config, *_: config.leaves_split)
    options = config(demo.TARGET, vram_limit=f"{(taken >> 20) + left}M")
    with Engine(config(demo.TARGET, slots=40)) as engine:
        wanted = text_of(engine)
    start = Engine if door == "engine" else Llama.from_config
    with closing(start(options)) as opened:
        engine = opened if door == "engine" else opened.engine
        notes = engine.notes
        assert not engine._pair.placement.whole
        assert engine.experts.slots.n_slots > 0
        [note] = [each for each in notes if "the split stays, for without it " in each]
        assert ("too little of simulated is left" if left > 0 else "are needed") in note
        assert NOTE not in notes
        assert text_of(engine) == wanted


def test_refusals_say_what_to_do():
    with Engine(config(demo.TARGET)) as engine:
        remedy = "target.gguf runs without the split, for all its experts fit: start with --slots"
        for call in (
            lambda: engine.set_slots(4),
            lambda: engine.set_vram_limit("1G"),
            lambda: engine.set_scheduler("lru"),
        ):
            with pytest.raises(InputError, match=remedy):
                call()
        with pytest.raises(Refusal, match="starts with --slots or a smaller --vram-limit"):
            change_memory(engine, {"slots": 4})


def test_costs_are_kept_apart_from_those_of_the_split():
    keys = []
    for options in ({}, {"slots": 8}):
        with closing(ModelPair(config(demo.TARGET, **options), None)) as pair:
            keys.append(key_of(pair).device)
    assert keys[0] != keys[1]


def test_doctor_tells_the_same(monkeypatch):
    monkeypatch.setenv(env.DEVICE.name, "simulated")
    *_, found = vram(demo.TARGET, None)
    assert found.found.endswith("all of them fit: llama.cpp computes the model there, without the split")
    *_, found = vram(demo.TARGET, VramLimit.parse("18M"))
    assert "contexts not counted" in found.found


def test_two_devices(tiny_model):
    _core.set_simulated_device(memory_mb=256)
    _core.set_simulated_device(memory_mb=128, index=1)
    target = tiny_model("qwen3moe", n_layer=5, n_expert=6)
    options = {"device": "simulated,simulated1", "tensor_split": "2,1"}
    with Engine(config(target, slots="100%", **options)) as engine:
        wanted = text_of(engine)
    with Engine(config(target, **options)) as engine:
        assert engine.experts is None
        assert text_of(engine) == wanted
        assert all(device.memory.used for device in engine.devices)
    _core.set_simulated_device(memory_mb=1, index=1)
    info = check_model(target)
    devices = choose_devices("simulated,simulated1")
    assert not all_fit(config(target, **options), info, None, devices)

"""Prompts whose experts come to the device: same text, slots left alone, and a way out without room."""

from __future__ import annotations

import ctypes
import importlib

import pytest

from spac import _core, _llama
from spac.config import EngineConfig, SamplingConfig
from spac.engine import Engine

api = importlib.import_module("llama_cpp.llama_cpp")  # after spac, which decides on the library

PROMPT = "def double(values):\n    return [2 * value for value in values]\n\n" * 3


def config(target, stream_batch, **options):
    sampling = SamplingConfig(temp=0.0, ignore_eos=True)
    return EngineConfig(
        target=target, device="stand-in", threads=1, ctx=512, sampling=sampling, stream_batch=stream_batch,
        governor="fixed", **options,
    )  # fmt: skip


@pytest.fixture(scope="module")
def target(tiny_model):
    return tiny_model("qwen3moe")


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


@pytest.mark.parametrize("scheduler", ["lru", "moe-spac"])
@pytest.mark.parametrize("stream_batch", [0, 16])
def test_a_prompt_leaves_the_slots_alone(target, scheduler, stream_batch):
    with Engine(config(target, stream_batch, scheduler=scheduler, slots="40%")) as engine:
        "".join(engine.generate("def f(x):", 24))
        assert engine.experts.settle(10)
        before = engine.experts.residency(), engine.experts.stats["uploads"]
        "".join(engine.generate(PROMPT, 0))
        engine.session.prefill(engine.tokenize(PROMPT))
        assert engine.experts.settle(10)
        assert (engine.experts.residency() == before[0]).all()
        assert engine.experts.stats["uploads"] == before[1]


def test_slots_leave_room_for_the_stream(target):
    with Engine(config(target, 0)) as engine:
        assert engine.experts.stream_bytes() == 0
    with Engine(config(target, 16)) as engine:
        free = next(device.memory_free for device in _core.devices() if device.is_stand_in)
        margin = free - engine.experts.stream_bytes()
        with_room = engine.experts.slots_that_fit(margin)
        engine.experts.set_stream_tokens(0)
        assert engine.experts.slots_that_fit(margin) > with_room


@pytest.fixture
def heard():
    """The library's log comes to us, whatever tests before have set."""
    api.llama_log_set(_llama._on_log, ctypes.c_void_p(0))


@pytest.mark.usefixtures("heard")
def test_without_room_prompts_are_split(target, expected):
    with Engine(config(target, 0)) as engine:
        "".join(engine.generate(PROMPT, 24))  # what else it needs is there now
        engine.session.reset()
        engine.experts.set_stream_tokens(16)
        _core.set_stand_in(memory_mb=1)
        try:
            assert "".join(engine.generate(PROMPT, 24)) == expected
        finally:
            _core.set_stand_in()
        assert engine.experts.stats["blocks_streamed"] == 0
        [note] = [note for note in engine.notes if "on their way" in note]
        assert "split" in note
        assert "".join(engine.generate(PROMPT, 24)) == expected

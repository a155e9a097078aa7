"""The tap gives the inputs of every FFN, bit for bit as llama.cpp's own eval callback reads them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from spac import _core
from spac.errors import InputError
from spac.machine.arrays import Float32Array
from spac.model.c_api import Context, Model
from tests.backend.eval_callback import CONTEXT, FFN_INPUTS, Callback, api, decode
from tests.conftest import TinyModel
from tools.models import FAMILIES

PROMPT, TOKENS = [5, 9, 2, 40, 7], [11, 3, 100, 8]
# Each pair is the beginning and the end of a prompt's piece. A token follows, which is decoded alone.
LENGTHS = [(0, 3), (4, 300), (301, 600), (601, 900), (901, 1200), (1201, 1500), (0, 3), (4, 300)]


@contextmanager
def on_simulated(path: Path, **params: int) -> Iterator[tuple[Context, _core.Tap, _core.Experts | None]]:
    with _core.LoadScope() as scope:
        model = Model(path, (_core.device_handle("simulated"),), {})
    try:
        with _core.Tap() as tap:
            context = Context(model, {**CONTEXT, **params})
        yield context, tap, scope.experts
        context.close()
    finally:
        model.close()


@contextmanager
def on_cpu(path: Path, family: str, **params: int) -> Iterator[tuple[Context, Callable[[], Float32Array]]]:
    """Yield a context, and a function that returns the FFNs' inputs for the last token: float32 [D, E]."""
    model = Model(path, (), {"use_extra_bufts": False})
    callback = Callback(FFN_INPUTS[family])
    context = Context(model, {**CONTEXT, "cb_eval": callback.address, **params})

    def seen() -> Float32Array:
        layers = [callback.seen[FFN_INPUTS[family], il] for il in range(len(callback.seen))]
        return np.stack([layer[-len(layers[-1]) :] for layer in layers])

    try:
        yield context, seen
        context.close()
    finally:
        model.close()


@pytest.mark.parametrize("family", FFN_INPUTS)
def test_what_the_eval_callback_sees(tiny_model: TinyModel, family: str) -> None:
    path, shape = tiny_model(family), FAMILIES[family].default
    with on_cpu(path, family) as (stock, seen), on_simulated(path) as (context, tap, _):
        assert (tap.n_layer, tap.n_embd) == (shape.n_layer, shape.n_embd)
        tap.set_on(True)
        decode(stock, PROMPT, 0)
        decode(context, PROMPT, 0)
        assert tap.states() is None, "a prompt's piece"
        for i, token in enumerate(TOKENS):
            expected = decode(stock, [token], len(PROMPT) + i)
            logits = decode(context, [token], len(PROMPT) + i)
            states = tap.states()
            assert states is not None
            assert np.array_equal(states, seen())
            assert np.array_equal(logits, expected)
        assert tap.n_tapped == len(TOKENS)


@pytest.mark.parametrize("family", ["qwen3", "qwen3moe"])
def test_a_context_that_grows_and_a_device_that_is_late(tiny_model: TinyModel, family: str) -> None:
    """Graphs change with the length of the context's memory. There are more of them than the tap keeps, and
    then the first ones come again."""
    path, size = tiny_model(family), {"n_ctx": 2048, "n_batch": 512}
    with on_cpu(path, family, **size) as (stock, seen), on_simulated(path, **size) as (context, tap, experts):
        if experts is not None and experts.n_layer:
            experts.attach_slots(sum(layer.n_expert for layer in experts.layers) // 2)
            ones = np.ones((experts.n_layer, experts.n_expert), np.int32)
            experts.submit(ones, np.ones(experts.n_layer, np.int32))
            assert experts.settle(10)
        _core.set_simulated_device(latency_us=20, delay_us=100)
        try:
            tap.set_on(True)
            for start, length in LENGTHS:
                for each in (stock, context):
                    api.llama_memory_seq_rm(api.llama_get_memory(each.pointer), 0, start, -1)
                    decode(each, [7 + i % 90 for i in range(start, length)], start)
                    decode(each, [length % 89], length)
                states = tap.states()
                assert states is not None
                assert np.array_equal(states, seen())
            assert tap.n_tapped == len(LENGTHS)
        finally:
            _core.set_simulated_device()


def test_off_it_shows_nothing_and_takes_nothing(tiny_model: TinyModel) -> None:
    with on_simulated(tiny_model("llama")) as (context, tap, _):
        memory = next(each.memory for each in _core.devices() if each.name == "simulated")
        decode(context, [3], 0)
        assert (tap.states(), tap.n_tapped) == (None, 0)
        tap.set_on(True)
        now = next(each.memory for each in _core.devices() if each.name == "simulated")
        assert now.used - memory.used >= tap.n_layer * tap.n_embd * 4 > 0
        decode(context, [4], 1)
        states = tap.states()
        assert states is not None
        kept = states.copy()
        tap.set_on(False)
        decode(context, [5], 2)
        assert (tap.states(), tap.n_tapped) == (None, 1)
        tap.set_on(True)
        api.llama_memory_seq_rm(api.llama_get_memory(context.pointer), 0, 1, -1)
        decode(context, [4], 1)
        assert np.array_equal(states, kept), "the same memory, and the same token"


def test_a_context_that_goes_takes_its_memory_along(tiny_model: TinyModel) -> None:
    def used() -> int:
        return next(each.memory.used for each in _core.devices() if each.name == "simulated")

    before = used()
    with on_simulated(tiny_model("llama")) as (context, tap, _):
        tap.set_on(True)
        decode(context, [4], 0)
        states = tap.states()
    assert used() == before
    assert (tap.n_layer, tap.states()) == (0, None)
    assert states is not None
    assert np.isfinite(states).all(), "a view keeps what it shows"


def test_a_tap_is_one_contexts() -> None:
    tap = _core.Tap()
    assert (tap.n_layer, tap.n_embd, tap.states()) == (0, 0, None)
    tap.set_on(True)
    with tap, pytest.raises(InputError, match="entered already"):
        tap.__enter__()


def test_layers_that_are_not_on_the_device_are_not_seen(tiny_model: TinyModel) -> None:
    model = Model(tiny_model("llama", n_layer=4), (_core.device_handle("simulated"),), {"n_gpu_layers": 2})
    with _core.Tap() as tap:
        context = Context(model, CONTEXT)
    assert 0 < tap.n_layer < 4
    context.close()
    model.close()

"""The tap shows states to routers: what they choose for a model's own states is what the model uses."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest

from spac import _core
from spac.errors import InputError
from spac.machine.arrays import Int32Array
from spac.model.c_api import Context, Model
from tests.decoding import CONTEXT, api, decode
from tools.models import FAMILIES

PROMPT, TOKENS = [5, 9, 2, 40, 7], [11, 3, 100, 8]
# Each pair is the beginning and the end of a prompt's piece. A token follows, which is decoded alone.
LENGTHS = [(0, 3), (4, 300), (301, 600), (601, 900), (901, 1200), (1201, 1500), (0, 3), (4, 300)]
ROUTERS = ("mixtral", "qwen3moe", "phimoe", "deepseek2", "gpt-oss", "glm4moe")


@contextmanager
def on_simulated(path: Path, **params: int) -> Iterator[tuple[Context, _core.Tap, Any]]:
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
def on_cpu(path: Path) -> Iterator[tuple[Context, _core.Tap]]:
    model, tap = Model(path, (), {"use_extra_bufts": False}), _core.Tap()
    function, data = tap.callback
    with tap:
        context = Context(model, {**CONTEXT, "cb_eval": function, "cb_eval_user_data": data})
    yield context, tap
    context.close()
    model.close()


def ask_all(tap: _core.Tap, experts: _core.Experts) -> None:
    blocks = [int(re.findall(r"\d+", layer.name)[0]) for layer in experts.layers]
    tap.ask(experts, blocks, [layer.n_used for layer in experts.layers])


def used(experts: _core.Experts) -> Int32Array:
    """Return what the model's last token used, int32 [L, U], sorted."""
    return np.sort(experts.routes()[:, 0])


@pytest.mark.parametrize("family", ROUTERS)
def test_a_models_own_states_choose_what_it_uses(tiny_model, family):
    path, shape = tiny_model(family), FAMILIES[family].default
    with on_simulated(path) as (context, tap, experts), on_cpu(path) as (other, host):
        assert (tap.n_layer, tap.n_embd) == (shape.n_layer, shape.n_embd)
        experts.set_counting(True)
        for each in (tap, host):
            ask_all(each, experts)
        decode(context, PROMPT, 0)
        decode(other, PROMPT, 0)
        assert tap.answers() is None, "a prompt's piece"
        for i, token in enumerate(TOKENS):
            decode(context, [token], len(PROMPT) + i)
            chosen = tap.answers()
            assert chosen is not None
            assert np.array_equal(np.sort(chosen), used(experts))
            decode(other, [token], len(PROMPT) + i)
            assert np.array_equal(host.answers(), chosen), "the same states on the CPU"
        assert tap.n_shown == host.n_shown == len(TOKENS)


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_a_dense_drafts_states(tiny_model, family):
    """The device finds the states by dataflow, the CPU by names."""
    with on_simulated(tiny_model("mixtral")) as (target, _, experts):
        decode(target, [1], 0)
        path = tiny_model(family, n_layer=experts.n_layer, n_embd=FAMILIES["mixtral"].default.n_embd)
        with on_simulated(path) as (context, tap, _), on_cpu(path) as (other, host):
            found = []
            for tapped, each in ((tap, context), (host, other)):
                ask_all(tapped, experts)
                found.append([])
                for i, token in enumerate(TOKENS):
                    decode(each, [token], i)
                    found[-1].append(tapped.answers())
    assert np.array_equal(*found)
    assert len({each.tobytes() for each in found[0]}) > 1, "every token has states of its own"


def test_fewer_layers_and_other_numbers(tiny_model):
    with on_simulated(tiny_model("qwen3moe")) as (context, tap, experts):
        ask_all(tap, experts)
        decode(context, [3], 0)
        whole = tap.answers()
        assert whole is not None
        found = []
        for inputs, n_chosen in (([0], [1]), ([0, 1], [3, 1]), ([], []), ([0, 1, 2], [2, 2, 2])):
            tap.ask(experts, inputs, n_chosen)
            api.llama_memory_seq_rm(api.llama_get_memory(context.pointer), 0, 0, -1)
            decode(context, [3], 0)
            found.append(tap.answers())
        assert found[0].tolist() == whole[:1, :1].tolist()
        assert found[1][:, 0].tolist() == whole[:2, 0].tolist()
        assert found[1][1].tolist() == [whole[1, 0], -1, -1]
        assert found[2] is None
        assert np.array_equal(found[3], whole[:3, :2])


def test_layers_are_known_while_the_token_is_computed(tiny_model):
    """A thread sees a growing number of layers of each token, and at the end what the token used."""
    seen: list[tuple[int, Int32Array]] = []

    def listen() -> None:
        token, n = 0, 0
        while (found := tap.next(token, n)) is not None:
            seen.append(found)
            token, n = found[0], len(found[1])

    with on_simulated(tiny_model("qwen3moe")) as (context, tap, experts):
        experts.set_counting(True)
        ask_all(tap, experts)
        thread = Thread(target=listen)
        thread.start()
        wanted = []
        try:
            for i, token in enumerate(TOKENS):
                decode(context, [token], i)
                wanted.append(used(experts))
                deadline = time.monotonic() + 10
                while not (seen and seen[-1][0] == i + 1 and len(seen[-1][1]) == experts.n_layer):
                    assert time.monotonic() < deadline
                    time.sleep(0.001)
        finally:
            tap.stop()
            thread.join()
    counts = [(token, len(chosen)) for token, chosen in seen]
    assert counts == sorted(set(counts))
    whole = [chosen for _, chosen in seen if len(chosen) == len(wanted[0])]
    assert np.array_equal(np.sort(whole), wanted)


@pytest.mark.parametrize(("straight", "settings"), [(True, {}), (False, {"latency_us": 20, "delay_us": 100})])
def test_a_context_that_grows_and_a_device_that_is_late(tiny_model, settings, straight):
    """Graphs change with the length of the context's memory. There are more of them than the tap keeps, and
    then the first ones come again. A device whose kernels do not reach the host's memory copies."""
    _core.set_hand_over_in_place(straight)
    with on_simulated(tiny_model("qwen3moe"), n_ctx=2048, n_batch=512) as (context, tap, experts):
        experts.attach_slots(sum(layer.n_expert for layer in experts.layers) // 2)
        ones = np.ones((experts.n_layer, experts.n_expert), np.int32)
        experts.submit(ones, np.ones(experts.n_layer, np.int32))
        assert experts.settle(10)
        experts.set_counting(True)
        _core.set_simulated_device(**settings)
        try:
            ask_all(tap, experts)
            for start, length in LENGTHS:
                api.llama_memory_seq_rm(api.llama_get_memory(context.pointer), 0, start, -1)
                decode(context, [7 + i % 90 for i in range(start, length)], start)
                decode(context, [length % 89], length)
                chosen = tap.answers()
                assert chosen is not None
                assert np.array_equal(np.sort(chosen), used(experts))
            assert tap.n_shown == len(LENGTHS)
        finally:
            _core.set_simulated_device()
            _core.set_hand_over_in_place(None)


def test_a_context_that_goes_takes_its_memory_along(tiny_model):
    with on_simulated(tiny_model("mixtral")) as (context, tap, experts):
        decode(context, [4], 0)
        assert (tap.answers(), tap.n_shown) == (None, 0)
        ask_all(tap, experts)
        decode(context, [4], 1)
        assert tap.answers() is not None
    assert (tap.n_layer, tap.answers()) == (0, None)
    assert tap.next(0, 0) is None


def test_a_tap_is_one_contexts():
    tap = _core.Tap()
    assert (tap.n_layer, tap.n_embd, tap.answers()) == (0, 0, None)
    with tap, pytest.raises(InputError, match="entered already"):
        tap.__enter__()


def test_routers_that_cannot_be_asked(tiny_model):
    with (
        on_simulated(tiny_model("mixtral")) as (context, tap, experts),
        on_simulated(tiny_model("mixtral", n_embd=128)) as (_, _, wide),
    ):
        for target, inputs, n_chosen, fault in (
            (experts, [9], [1], "the draft has no such layer"),
            (experts, [0], [99], "cannot choose 99 experts"),
            (wide, [0], [1], "its input is 128 wide"),
        ):
            with pytest.raises(InputError, match=fault):
                tap.ask(target, inputs, n_chosen)
        with pytest.raises(InputError, match="one number of experts for each input"):
            tap.ask(experts, [0, 1], [1])
        decode(context, [4], 0)
        assert tap.answers() is None


def test_layers_that_are_not_on_the_device_are_not_seen(tiny_model):
    model = Model(tiny_model("llama", n_layer=4), (_core.device_handle("simulated"),), {"n_gpu_layers": 2})
    with _core.Tap() as tap:
        context = Context(model, CONTEXT)
    assert 0 < tap.n_layer < 4
    context.close()
    model.close()

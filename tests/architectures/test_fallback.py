"""A block that cannot be split runs as llama.cpp would run it, and one line says so.

A graph that is not for decoding moves no expert, and does not count as demand.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spac import _core
from spac.engine import Engine
from spac.model import c_api
from tests.engine.conftest import config
from tests.session.lab import Lab, prompt
from tools.models import write_adapter

# isort: split
import llama_cpp.llama_cpp as api  # imported after spac, which chooses the library

TEXT = "def fibonacci(n):"


@pytest.fixture
def log():
    """Restore the engine's log callback, which another test may have replaced."""
    c_api.listen()
    c_api.take_notices()


def load(path: Path, **options: Any) -> Engine:
    return Engine(config(path, **{"ctx": 256, "slots": 0.5, **options}))


def adapted_text(path: Path, adapter: Path, **options: Any) -> tuple[str, list[str]]:
    with load(path, lora=((adapter, 1.0),), **options) as engine:
        text = "".join(engine.generate(TEXT, 24))
        text += "".join(engine.generate(text, 24))
        return text, [note for note in engine.notes if "split" in note]


@pytest.mark.usefixtures("log")
@pytest.mark.parametrize("family", ["qwen3moe", "deepseek2"])
def test_an_adapter_on_experts_is_noted_once(tiny_model, tmp_path, family):
    path = tiny_model(family)
    adapter = write_adapter(tmp_path / "adapter.gguf", path)
    text, notes = adapted_text(path, adapter)
    assert len(notes) == 1
    assert "_exps.weight cannot be split" in notes[0]
    assert "run on the CPU" in notes[0]
    assert text == adapted_text(path, adapter, device="cpu")[0]


@pytest.fixture
def no_kernel():
    _core.set_simulated_device(fault="no-kernel")
    yield
    _core.set_simulated_device()


@pytest.mark.usefixtures("log", "no_kernel")
def test_a_device_without_kernels_is_noted_once(tiny_model):
    path = tiny_model("qwen3moe")
    with load(path) as engine:
        text = "".join(engine.generate(TEXT, 24))
        assert engine.experts is not None
        stats = engine.experts.stats
        assert stats["blocks_host"] == stats["blocks"] > 0
        notes = [note for note in engine.notes if "split" in note]
    assert len(notes) == 1
    assert "_exps.weight cannot be split (the device has no kernel for it)" in notes[0]
    with load(path, device="cpu") as engine:
        assert text == "".join(engine.generate(TEXT, 24))


def said(path: Path, *contexts: Any, **options: Any) -> list[int]:
    loop = _core.ServerLoop(str(path), "x", *contexts, trace=_core.Trace(), temp=0.0, **options)
    asked = {"prompt": prompt(40).tolist(), "n_predict": 24, "return_tokens": True, "ignore_eos": True}
    answer = loop.begin("completion", json.dumps(asked).encode())
    answer.run()
    tokens: list[int] = json.loads(answer.body)["tokens"]
    loop.close()
    return tokens


def test_experts_met_after_the_layers_were_counted_are_noted_once(lab, tiny_model):
    """A prediction layer has such experts: its context is created later."""
    path = tiny_model("glm4moe", n_layer=4, options={"mtp": 1})
    expected = said(path, lab.context(path))
    target = lab.context(path)
    experts = lab.experts(path)
    assert experts is not None
    assert experts.n_layer == 2
    draft = lab.context(path, ctx_type=1, ctx_other=target)
    c_api.listen()
    c_api.take_notices()
    assert said(path, target, draft, experts, draft_types=["draft-mtp"], draft_max=3) == expected
    notes = c_api.take_notices()
    assert len(notes) == 1
    assert "(it was met after the layers were counted)" in notes[0]
    assert experts.n_layer == 2


@pytest.mark.usefixtures("log")
def test_spacs_own_warnings_are_notes_and_nothing_else_is():
    for level, line in (
        (2, b"spac: info\n"),
        (3, b"a warning\n"),
        (3, b"spac: one\n"),
        (4, b"spac: an error\n"),
    ):
        c_api._on_log(level, line)
    assert c_api.take_notices() == ["one"]
    assert c_api.take_notices() == []
    assert "an error" in c_api.last_error()


def settled(lab: Lab, path: Path, n_slots: int = 8) -> tuple[_core.Experts, np.ndarray[Any, Any]]:
    """Return a model's experts after a plan has filled their slots, and the residency."""
    lab.context(path)
    experts = lab.experts(path)
    assert experts is not None
    experts.attach_slots(n_slots)
    shape = (experts.n_layer, experts.n_expert)
    priority = np.random.default_rng(3).permutation(int(np.prod(shape))).astype(np.int32).reshape(shape)
    experts.submit(priority, np.zeros(shape[0], np.int32))
    assert experts.settle(20)
    return experts, experts.residency()


@pytest.mark.parametrize(("scheduler", "ubatch"), [("lru", 16), ("moe-spac", 64)])
def test_prompts_between_steps_leave_what_decoding_earned(tiny_model, scheduler, ubatch):
    """This holds under every scheduler that follows demand, for long prompts, for ones as short as a step,
    and for graphs as small as a step's."""
    with load(tiny_model("qwen3moe"), ctx=2048, ubatch=ubatch, slots=6, scheduler=scheduler) as engine:
        "".join(engine.generate(TEXT, 30))
        experts = engine.experts
        assert experts is not None
        assert experts.settle(20)
        resident, before = experts.residency(), experts.stats
        assert before["uploads"] >= (resident >= 0).sum() > 0
        for n_tokens in (1800, 9, 40):
            "".join(engine.generate(prompt(n_tokens, seed=n_tokens), 1))
            assert experts.settle(20)
            assert (experts.residency() == resident).all()
            assert experts.stats["uploads"] == before["uploads"]
            for counter in ("evictions", "activations", "distinct"):
                assert experts.stats[counter] == before[counter], counter
        assert experts.stats["blocks"] > before["blocks"]


@pytest.mark.parametrize("n_tokens", [1, 40])
def test_a_warm_up_is_no_demand(lab, tiny_model, n_tokens):
    """llama.cpp warms a model up with graphs that use all experts at once."""
    path = tiny_model("qwen3moe")
    experts, resident = settled(lab, path)
    experts.set_counting(True)
    experts.take_demand()
    context = lab.context(path)

    def decode(n: int) -> int:
        tokens = (api.llama_token * n)(*range(n))
        assert api.llama_decode(context, api.llama_batch_get_one(tokens, n)) == 0
        api.llama_synchronize(context)
        demand, n_steps = experts.take_demand()
        assert n_steps == (1 if demand.any() else 0)
        return int(demand.sum())

    api.llama_set_warmup(context, True)
    assert decode(n_tokens) == 0
    api.llama_set_warmup(context, False)
    assert (experts.residency() == resident).all()
    assert [layer.n_used for layer in experts.layers] == [2] * 3
    # For as many tokens, llama.cpp would use the warm-up's graph again. The last layer computes only the
    # token whose logits are requested.
    assert decode(n_tokens + 1) == (n_tokens + 1) * 2 * 2 + 2


def test_demand_of_blocks_that_ran_wholly_on_the_device(lab, tiny_model):
    """The demand is counted later, when llama.cpp builds its next graph where the last one was."""
    path = tiny_model("qwen3moe")
    experts, resident = settled(lab, path, n_slots=15)
    assert (resident >= 0).all()
    context = lab.context(path)
    experts.take_demand()
    before, expected = experts.stats, 0
    for n in (24, 3, 16, 1, 1, 40, 2):
        tokens = (api.llama_token * n)(*range(n))
        assert api.llama_decode(context, api.llama_batch_get_one(tokens, n)) == 0
        expected += n * 2 * 2 + 2  # the last layer computes only one token
    api.llama_synchronize(context)
    demand, n_steps = experts.take_demand()
    assert (demand.sum(), n_steps) == (expected, 7)
    after = experts.stats
    assert after["blocks_device"] - before["blocks_device"] == after["blocks"] - before["blocks"] == 21
    assert after["activations_hit"] - before["activations_hit"] == expected

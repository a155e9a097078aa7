"""Routers that are read from a model's file choose exactly the model's experts for the inputs of its FFNs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader

from spac import _core
from spac.errors import InputError
from spac.model.c_api import Context, Model
from spac.model.gguf.routers import read_routers
from tests.backend.eval_callback import CONTEXT, FFN_INPUTS, Callback, decode
from tests.conftest import TinyModel
from tools.models import FAMILIES

SEVERAL = {"n_expert": 8, "n_used": 3, "n_layer": 3}
CASES = {
    "mixtral": {"n_expert": 8},
    "qwen3moe": {"n_expert": 13, "n_used": 4, "types": {"ffn_gate_inp": "F16"}},
    "phimoe": {},
    "gpt-oss": SEVERAL,  # with a bias
    "deepseek2": {**SEVERAL, "n_dense": 1},  # the first layer has no experts
    "deepseek2-v3": {**SEVERAL, "n_group": 4, "n_group_used": 2, "options": {"sigmoid": 1}},
    "glm4moe": SEVERAL,  # with a selection bias and no metadata of the gating function
}


def routed_layers(path: Path) -> list[str]:
    return [t.name for t in GGUFReader(path).tensors if t.name.endswith("ffn_down_exps.weight")]


@pytest.mark.parametrize("case", CASES)
def test_a_models_own_states_give_its_own_routes(tiny_model: TinyModel, case: str) -> None:
    family = case.removesuffix("-v3")
    path = tiny_model(family, **CASES[case])
    names = routed_layers(path)
    routers = read_routers(path, names)
    model = Model(path, (), {"use_extra_bufts": False})
    callback = Callback(FFN_INPUTS[family], "ffn_moe_topk")
    context = Context(model, {**CONTEXT, "cb_eval": callback.address})
    n_used = CASES[case].get("n_used", 2)
    for i, token in enumerate([5, 9, 2, 40, 7, 11, 3, 100, 8, 8, 21]):
        decode(context, [token], i)
        states = np.stack([callback.seen[FFN_INPUTS[family], il] for il in range(routers.n_layer)])
        assert states.shape == (routers.n_layer, routers.n_embd)
        chosen = routers.top(states[:, None].astype(np.float32), [n_used] * len(names))
        for row, block in zip(chosen, routers.blocks, strict=True):
            assert set(row[0].tolist()) == set(callback.seen["ffn_moe_topk", block].tolist())
    context.close()
    model.close()


# An engine refuses models with other than one FFN a layer. The last two have routers with another input than
# the FFN, so their predictions may be wrong.
OTHERS = {
    "arctic": "a dense FFN beside the experts, from another input",
    "gemma4": "two FFNs",
    "graniteswitch": "a router of another name",
    "grovemoe": "smaller experts beside the experts",
    "kimi-k3": "layers without an FFN",
    "nemotron_h": "layers without an FFN",
    "nemotron_h_moe": "layers without an FFN",
    "qwen4exp": "several streams",
    "deepseek4": "layers whose experts follow from the token",
    "smallthinker": "a router that sees what enters the attention",
}
ROUTED = [name for name in FAMILIES if name not in ("llama", "qwen3")]


@pytest.mark.parametrize("family", [name for name in ROUTED if name not in OTHERS])
def test_what_is_tapped_of_a_model_gives_its_own_routes(tiny_model: TinyModel, family: str) -> None:
    path = tiny_model(family)
    with _core.LoadScope() as scope:
        model = Model(path, (_core.device_handle("simulated"),), {})
    with _core.Tap() as tap:
        context = Context(model, CONTEXT)
    experts = scope.experts
    assert experts is not None
    routers = read_routers(path, [layer.name for layer in experts.layers])
    assert (tap.n_layer, tap.n_embd) == (routers.n_layer, routers.n_embd)
    tap.set_on(True)
    for i, token in enumerate([5, 9, 2, 40, 7, 11, 3, 100]):
        decode(context, [token], i)
        states = tap.states()
        assert states is not None
        chosen = routers.top(states[:, None], [layer.n_used for layer in experts.layers])
        for predicted, real in zip(chosen[:, 0], experts.routes()[:, 0], strict=True):
            assert set(predicted.tolist()) == set(real.tolist())
    context.close()
    model.close()


def test_fewer_layers_and_other_numbers_of_experts(tiny_model: TinyModel) -> None:
    path = tiny_model("mixtral", n_expert=8)
    routers = read_routers(path, routed_layers(path))
    states = np.random.default_rng(0).standard_normal((3, 4, routers.n_embd)).astype(np.float32)
    whole = routers.top(states, [8, 8, 8])
    chosen = routers.top(states, [3, 1])
    assert chosen.shape == (2, 4, 3)
    assert np.array_equal(chosen[0], whole[0, :, :3])
    assert np.array_equal(chosen[1, :, :1], whole[1, :, :1])
    assert (chosen[1, :, 1:] == -1).all()


def test_a_layer_without_a_router_is_one_line(tiny_model: TinyModel) -> None:
    path = tiny_model("llama")
    with pytest.raises(
        InputError, match=r"layer 1 has no router 'blk\.1\.ffn_gate_inp\.weight'.*--scheduler"
    ):
        read_routers(path, ["blk.1.ffn_down.weight"])

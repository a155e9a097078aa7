"""These tests compare odd shapes and all settings of a context with the reference, bit for bit.

No real model has these shapes. The plan changes before every step. test_families.py has every
architecture at its default shape. One worker process for each library runs all cases.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.conftest import TinyModel
from tools.compare import Case, Run, Settings, compare
from tools.models import FAMILIES, Shape

SMALL = Settings(n_ctx=256, n_batch=128, n_ubatch=32)
FLASH = replace(SMALL, flash_attn=True)
RUNS = (Run("half", 0.5, seed=1), Run("moving", 0.4, seed=2, moving=True))

MIXED = {
    "*": "Q8_0",
    "blk.0.ffn_*_exps": "Q4_0",
    "blk.1.ffn_down_exps": "Q5_1",
    "blk.1.ffn_gate*_exps": "IQ4_NL",
    "blk.2.ffn_up_exps": "BF16",
    "blk.2.ffn_down_exps": "F16",
}
"""Types of tensors: each layer has other types, and some layers have several."""


def shape(family: str, **changes: Any) -> tuple[str, Shape]:
    return family, replace(FAMILIES[family].default, **changes)


ODD: dict[str, tuple[str, Shape]] = {
    "one layer": shape("qwen3moe", n_layer=1),
    "7 layers, 11 experts, 5 used": shape("qwen3moe", n_layer=7, n_expert=11, n_used=5),
    "all experts used but one": shape("qwen3moe", n_expert=4, n_used=3),
    "one expert used": shape("mixtral", n_expert=3, n_used=1),
    "widths of 33 and 35": shape("qwen3moe", n_embd=33, n_ff_exp=35),
    "three dense layers": shape("deepseek2", n_layer=5, n_dense=3, options={"merged": 1}),
    "experts in every third layer": shape("llama4", n_layer=6, options={"moe_every": 3}),
    "two shared experts": shape("deepseek2", n_shared=2, n_expert=8, n_group=2, options={"sigmoid": 1}),
    "experts of two matrices": shape("granitemoe", options={"gateless": 1}),
    "no scales": shape("qwen3moe"),
    "a scale for every expert": shape("qwen3moe", options={"scales": 1}),
    "scales, quantized": shape("qwen3moe", types={"*_exps": "Q4_0"}, options={"scales": 1}),
    "biases, odd": shape("gpt-oss", n_expert=7, n_used=3, types={"*": "Q8_0", "*_exps": "MXFP4"}),
}
MIXED_FAMILIES = ("mixtral", "qwen2moe", "glm4moe", "phimoe", "llama4", "grovemoe", "gpt-oss", "dots1")
CONDITIONS: dict[str, tuple[tuple[str, Shape], dict[str, Any]]] = {
    "no mmap": (shape("qwen3moe", types={"*_exps": "Q4_0"}), {"use_mmap": False}),
    "no mmap, merged": (shape("deepseek2", options={"merged": 1}), {"use_mmap": False}),
    "no mmap, scales": (shape("qwen3moe", options={"scales": 1}), {"use_mmap": False}),
    "scales, ubatch of 7": (
        shape("qwen3moe", options={"scales": 1}),
        {"settings": replace(SMALL, n_ubatch=7)},
    ),
    "state": (shape("qwen3moe", types={"*": "Q8_0"}), {"script": "state"}),
    "state, latent attention": (shape("deepseek2"), {"script": "state"}),
    "state, windows": (shape("gpt-oss"), {"script": "state"}),
    "context shift": (shape("qwen3moe", types={"*": "Q8_0"}), {"script": "shift"}),
    "context shift, shared expert": (shape("qwen2moe"), {"script": "shift"}),
    "context shift, flash attention": (shape("mixtral"), {"script": "shift", "settings": FLASH}),
    "flash attention, latent": (shape("deepseek2"), {"settings": FLASH}),
    "flash attention, input weighted first": (shape("llama4"), {"settings": FLASH}),
    "ubatch of 1": (shape("qwen3moe"), {"settings": replace(SMALL, n_ubatch=1)}),
    "ubatch of 7": (shape("glm4moe"), {"settings": replace(SMALL, n_ubatch=7)}),
    # Pieces of the prompt whose logits are not requested have no row in the last layer.
    "experts in the last layer only": (
        shape("deepseek2", n_layer=2),
        {"settings": replace(SMALL, n_batch=13)},
    ),
    "batch of 13, ubatch of 5": (shape("dots1"), {"settings": replace(SMALL, n_batch=13, n_ubatch=5)}),
}
PARTIAL: dict[str, tuple[tuple[str, Shape], int]] = {
    f"{n} layers on the device, {name}": (model, n)
    for name, model in {
        "F32": shape("qwen3moe", n_layer=4),
        "Q8_0": shape("qwen3moe", n_layer=4, types={"*": "Q8_0"}),
        "merged": shape("deepseek2", n_layer=4, options={"merged": 1}),
        "scales": shape("qwen3moe", n_layer=4, options={"scales": 1}),
    }.items()
    for n in (0, 1, 3, 4)
}


def make_cases(tiny_model: TinyModel) -> dict[str, Case]:
    cases: dict[str, Case] = {}

    def add(name: str, model: tuple[str, Shape], **more: Any) -> None:
        path = tiny_model(*model)
        cases[name] = Case(name, str(path), **{"settings": SMALL, "runs": RUNS, "script": "short", **more})

    for name, model in ODD.items():
        add(name, model)
    for family in MIXED_FAMILIES:
        add(f"{family}, mixed types", shape(family, types=MIXED))
    for name, (model, more) in CONDITIONS.items():
        add(name, model, **more)
    for name, (model, n) in PARTIAL.items():
        add(name, model, n_gpu_layers=n)
    return cases


NAMES = [*ODD, *(f"{family}, mixed types" for family in MIXED_FAMILIES), *CONDITIONS, *PARTIAL]


@pytest.fixture(scope="module")
def cases(tiny_model):
    made = make_cases(tiny_model)
    assert list(made) == NAMES
    return made


@pytest.mark.parametrize("case", NAMES)
def test_every_logit_equals_the_reference(case, cases, ours, reference):
    assert [str(found) for found in compare(cases[case], ours, reference)] == []


@pytest.mark.parametrize("case", [name for name in NAMES if name not in PARTIAL])
def test_device_and_cpu_had_both_work(case, ours):
    for run in RUNS:
        stats: Any = ours.meta[f"{case}|{run.name}"]["stats"]
        assert 0 < stats["activations_hit"] < stats["activations"]


@pytest.mark.parametrize("case", ["a scale for every expert", "scales, quantized"])
def test_scales_make_no_layers_of_their_own(case, ours):
    """Scales do not add demand either: it equals the demand of the model without scales."""
    for run in RUNS:
        scaled, plain = ours.meta[f"{case}|{run.name}"], ours.meta[f"no scales|{run.name}"]
        assert scaled["n_layer"] == plain["n_layer"] == 3
        counted: Any = [(m["stats"]["blocks"], m["stats"]["activations"]) for m in (scaled, plain)]  # type: ignore[index]
        assert counted[0] == counted[1]


@pytest.mark.parametrize("case", PARTIAL)
def test_layers_that_stay_on_the_cpu_have_no_slots(case, ours):
    """llama.cpp counts the output as a layer, and puts the last layers on the device first."""
    (family, shape_), n_gpu_layers = PARTIAL[case]
    first = max(shape_.n_layer + 1 - n_gpu_layers, shape_.n_dense if family == "deepseek2" else 0)
    meta: Any = ours.meta[f"{case}|half"]
    assert meta["n_layer"] == max(0, shape_.n_layer - first)
    assert (meta["stats"]["activations"] > 0) == (meta["n_layer"] > 0)


@pytest.mark.parametrize("case", [name for name in CONDITIONS if name.startswith("state")])
def test_a_restored_state_goes_on_as_before(case, reference, ours):
    """The comparison above really compares restored states."""
    for steps in (reference.logits[case, "reference"], *(ours.logits[case, run.name] for run in RUNS)):
        for i in range(6):
            assert (steps[f"before {i}"] == steps[f"after {i}"]).all()

"""`spac.Llama` and `spac.enable()` on several devices, with llama_cpp's own names for how they are used."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import llama_cpp
import pytest

import spac
from spac import _core
from spac.errors import InputError, OutOfMemoryError
from spac.llama_cpp_python.llama import Llama
from tests.llama_cpp_python.conftest import SMALL
from tests.slot_layers import layers_on_slot_devices

NONE, LAYER, ROW = (
    llama_cpp.LLAMA_SPLIT_MODE_NONE, llama_cpp.LLAMA_SPLIT_MODE_LAYER, llama_cpp.LLAMA_SPLIT_MODE_ROW,
)  # fmt: skip
BOTH: dict[str, Any] = {"device": "simulated,simulated1", "slots": 12}


@pytest.fixture(autouse=True)
def devices():
    """Set two simulated devices of different size and speed."""
    _core.set_simulated_device(memory_mb=256)
    _core.set_simulated_device(memory_mb=64, upload_gb_s=0.5, index=1)
    yield
    spac.disable()
    for index in range(2):
        _core.set_simulated_device(index=index)


@pytest.fixture(scope="module")
def target(tiny_model):
    return tiny_model("qwen3moe", n_layer=5, n_expert=6)


@pytest.fixture(scope="module")
def draft(tiny_model):
    return tiny_model("qwen3", n_layer=1)


def text_of(llm: Any) -> str:
    return str(llm("def double(values):", max_tokens=8, temperature=0)["choices"][0]["text"])


@pytest.fixture(scope="module")
def expected(target):
    with closing(Llama(str(target), device="cpu", **SMALL)) as llm:
        return text_of(llm)


def layers_of(llm: Llama) -> dict[str, int]:
    return {each.name: each.n_layer for each in llm.engine.experts.devices}


PLACES: dict[str, tuple[dict[str, Any], dict[str, int]]] = {
    "parts": ({"tensor_split": [2, 1]}, {"simulated": 4, "simulated1": 1}),
    "parts, by layers": ({"tensor_split": [0, 1], "split_mode": LAYER}, {"simulated1": 5}),
    "one": ({"split_mode": NONE}, {"simulated": 5}),
    "the other": ({"split_mode": NONE, "main_gpu": 1}, {"simulated1": 5}),
    "zeros, which mean nothing": ({"tensor_split": [0.0, 0.0], "split_mode": NONE}, {"simulated": 5}),
    "slots alone": ({"device": "simulated", "slot_devices": "simulated1"}, {"simulated": 3, "simulated1": 2}),
}


@pytest.mark.parametrize(("options", "layers"), PLACES.values(), ids=PLACES)
def test_llama_cpps_names_place_the_layers(target, opened, expected, options, layers):
    with layers_on_slot_devices(2):
        llm = opened(target, **{**BOTH, **options})
    assert text_of(llm) == expected
    assert layers_of(llm) == layers


@pytest.mark.parametrize("main", [0, 1])
def test_the_main_device_has_the_draft(target, draft, opened, expected, main):
    llm = opened(target, draft=draft, draft_length=3, main_gpu=main, tensor_split=[1, 1], **BOTH)
    assert text_of(llm) == expected
    assert llm.engine.device.name == BOTH["device"].split(",")[main]
    assert llm.stats.drafted_tokens > 0
    assert [each["name"] for each in llm.stats.devices] == BOTH["device"].split(",")


def test_enabled_programs_run_on_several_devices(target, expected):
    """The program gives its own arguments; the device's names come from `enable`."""
    both = {"simulated": 3, "simulated1": 2}
    for enabled, options, layers in (
        (BOTH, {"tensor_split": [1, 1], "main_gpu": 1}, both), (BOTH, {"split_mode": NONE}, {"simulated": 5}),
        ({"device": "simulated", "slot_devices": ["simulated1"]}, {}, both),
    ):  # fmt: skip
        spac.enable(**enabled)
        with layers_on_slot_devices(2), closing(llama_cpp.Llama(str(target), **options, **SMALL)) as llm:
            assert isinstance(llm, Llama)
            assert text_of(llm) == expected
            assert layers_of(llm) == layers


BAD: dict[str, dict[str, Any]] = {
    "split_mode: 'row' divides each matrix": {"split_mode": ROW},
    "split_mode: '7' is not one of none, layer": {"split_mode": 7},
    "main_gpu 2: there are 2": {"main_gpu": 2},
    "main_gpu must be .*, not -1": {"main_gpu": -1},
    "tensor_split 1,1,1 has 3 parts, and there are 2": {"tensor_split": [1, 1, 1]},
    r"tensor_split: \[1, -1\] is not a list of parts": {"tensor_split": [1, -1]},
    "tensor_split: 'a' is not a list of parts": {"tensor_split": "a"},
    "unknown device 'simulated9'": {"device": "simulated,simulated9"},
    "simulated is named twice": {"device": "simulated,simulated"},
    "slot_devices: simulated1 is a device of the layers": {"slot_devices": "simulated1"},
}  # fmt: skip


@pytest.mark.parametrize(("line", "options"), BAD.items(), ids=BAD)
def test_bad_values_are_one_line(target, line, options):
    with pytest.raises(InputError, match=line) as error:
        Llama(str(target), **{**BOTH, **SMALL, **options})
    assert "\n" not in str(error.value)


def test_a_device_without_memory_is_named_with_the_remedy(target):
    _core.set_simulated_device(memory_mb=1, index=1)
    for options, remedy in (
        ({"tensor_split": [1, 1]}, "--tensor-split can give a device fewer layers"),
        ({"device": "simulated", "slot_devices": "simulated1"}, "leave simulated1 out of --slot-devices"),
    ):
        with pytest.raises(OutOfMemoryError, match=remedy) as error, layers_on_slot_devices(2):
            Llama(str(target), **{**BOTH, **SMALL, **options})
        assert "\n" not in str(error.value)


def test_bad_devices_are_one_line_for_enabled_programs(target):
    with pytest.raises(InputError, match=r"enable\(\) has no 'tensor_split'"):
        spac.enable(tensor_split=[1, 1])  # type: ignore[call-arg]
    spac.enable(device="simulated,simulated9")
    with pytest.raises(InputError, match="unknown device 'simulated9'"):
        llama_cpp.Llama(str(target), **SMALL)

"""Layers whose experts have slots on another device than their dense weights compute the CPU's logits.

The devices are simulated ones. ggml's scheduler copies a block's input to the device of the slots, and its
output back. tests/engine/test_slot_devices.py has the option.
"""

from dataclasses import replace

import pytest

from tests.backend.test_several_devices import BRIEF, FAST, MODELS, RUNS, SLOW
from tools.compare import HALF, Case, Job, Settings

CHOSEN = tuple(
    run for run in RUNS if run.name in {"all", "moving", "prompts streamed", "misses loaded, moving"}
)
LAYERS = ((), (2, 3, 4))
"""The layers whose experts each device has, beside those of its own."""


@pytest.fixture(scope="module")
def cases(tiny_model):
    made = {
        name: Case(name, str(tiny_model(*MODELS[name])), HALF, runs, script="half", tensor_split=(1, 0),
                   slot_layers=LAYERS)
        for name, runs in {"qwen3moe mixed": CHOSEN, "deepseek2": BRIEF[2:], "gpt-oss": BRIEF[1:]}.items()
    }  # fmt: skip
    made["all, small ubatch"] = replace(
        made["qwen3moe mixed"], name="all, small ubatch", slot_layers=((), (0, 1, 2, 3, 4)), runs=BRIEF[2:],
        settings=Settings(n_batch=128, n_ubatch=24, flash_attn=True),
    )  # fmt: skip
    return made


@pytest.fixture(scope="module")
def two(cases, equal):
    """Return the results with a second device, which are the reference's."""
    return equal(Job(tuple(cases.values()), simulated_device=FAST, further_devices=(SLOW,)))


def test_slots_on_two_further_devices_change_no_logit(cases, equal):
    case = replace(cases["gpt-oss"], tensor_split=(1, 0, 0), slot_layers=((), (1,), (2, 3)))
    further = FAST, {**SLOW, "upload_gb_s": 0.1}
    result = equal(Job((case,), simulated_device=SLOW, further_devices=further))
    devices = result.meta["gpt-oss|moving"]["devices"]
    assert [each["n_layer"] for each in devices] == [1, 1, 2]
    assert all(each["uploads"] > 0 for each in devices)


def test_each_device_did_its_part(two):
    """The equality above would also hold if the main device or the CPU did all of the work."""
    meta = two.meta["qwen3moe mixed|moving"]
    assert [each["n_layer"] for each in meta["devices"]] == [2, 3]
    for each in meta["devices"]:
        assert 0 < each["activations_hit"] < each["activations"]
        assert each["uploads"] > each["n_slots"] > 0
    [alone] = two.meta["all, small ubatch|prompts streamed"]["devices"]
    assert (alone["name"], alone["n_layer"]) == ("simulated1", 5)
    everything = two.meta["qwen3moe mixed|all"]["stats"]
    assert everything["blocks_device"] == everything["blocks"] > 0
    assert two.meta["qwen3moe mixed|prompts streamed"]["stats"]["blocks_streamed"] > 0
    loaded = two.meta["qwen3moe mixed|misses loaded, moving"]["stats"]
    assert loaded["misses_loaded"] > 0
    assert loaded["foreseen"] > 0


def test_graphs_of_layers_are_kept(two):
    assert two.meta["qwen3moe mixed|all"]["stats"]["graphs_prepared"] > 0
    assert two.meta["qwen3moe mixed|moving"]["stats"]["graphs_prepared"] == 0

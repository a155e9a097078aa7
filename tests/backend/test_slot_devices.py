"""Layers whose experts have slots on another device than their dense weights compute the CPU's logits.

The devices are simulated ones. ggml's scheduler copies a block's input to the device of the slots, and its
output back. tests/engine/test_slot_devices.py has the option.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.backend.test_several_devices import BRIEF, FAST, MODELS, RUNS, SLOW
from tests.conftest import TinyModel
from tools.compare import HALF, Case, Job, Run, Settings, compare, run_worker
from tools.compare.driver import Result

CHOSEN = tuple(
    run for run in RUNS if run.name in {"all", "moving", "prompts streamed", "misses loaded, moving"}
)
LAYERS = ((), (2, 3, 4))
"""The layers whose experts each device has, beside those of its own."""


@pytest.fixture(scope="module")
def cases(tiny_model: TinyModel) -> dict[str, Case]:
    made = {
        name: Case(
            name,
            str(tiny_model(*MODELS[name])),
            HALF,
            runs,
            script="half",
            tensor_split=(1, 0),
            slot_layers=LAYERS,
        )
        for name, runs in {"qwen3moe mixed": CHOSEN, "deepseek2": BRIEF[2:], "gpt-oss": BRIEF[1:]}.items()
    }
    small = Settings(n_batch=128, n_ubatch=24, flash_attn=True)
    everything = ((), (0, 1, 2, 3, 4))
    made["all, small ubatch"] = replace(
        made["qwen3moe mixed"],
        name="all, small ubatch",
        settings=small,
        slot_layers=everything,
        runs=BRIEF[2:],
    )
    return made


@pytest.fixture(scope="module")
def reference(
    cases: dict[str, Case], reference_lib: Path, tmp_path_factory: pytest.TempPathFactory
) -> Result:
    plain = [replace(case, runs=(Run(),), tensor_split=(), slot_layers=()) for case in cases.values()]
    return run_worker(
        "reference", Job(tuple(plain)), tmp_path_factory.mktemp("reference"), lib_path=reference_lib
    )


@pytest.fixture(scope="module")
def two(cases: dict[str, Case], tmp_path_factory: pytest.TempPathFactory) -> Result:
    job = Job(tuple(cases.values()), simulated_device=FAST, further_devices=(SLOW,))
    return run_worker("spac", job, tmp_path_factory.mktemp("two"))


def test_slots_on_a_second_device_change_no_logit(cases, two, reference):
    assert [str(found) for case in cases.values() for found in compare(case, two, reference)] == []


def test_slots_on_two_further_devices_change_no_logit(cases, reference, tmp_path_factory):
    case = replace(cases["gpt-oss"], tensor_split=(1, 0, 0), slot_layers=((), (1,), (2, 3)))
    job = Job((case,), simulated_device=SLOW, further_devices=(FAST, {**SLOW, "upload_gb_s": 0.1}))
    result = run_worker("spac", job, tmp_path_factory.mktemp("three"))
    assert [str(found) for found in compare(case, result, reference)] == []
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
    """The second device has a graph for each layer and shape. Those of a first run serve the next ones."""
    assert two.meta["qwen3moe mixed|all"]["stats"]["graphs_prepared"] > 0
    assert two.meta["qwen3moe mixed|moving"]["stats"]["graphs_prepared"] == 0

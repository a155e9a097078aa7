"""Layers whose experts have slots on another device than their dense weights compute every logit as the CPU does.

The devices are simulated ones. ggml's scheduler copies a block's input to the device of the slots, and its
output back. tests/engine/test_slot_devices.py has the option.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.backend.test_several_devices import BRIEF, FAST, MIXED, MODELS, RUNS, SLOW
from tests.conftest import TinyModel
from tools.compare import Case, Job, Run, Settings, compare, run_worker
from tools.compare.driver import Result


@pytest.fixture(scope="module")
def cases(tiny_model: TinyModel) -> dict[str, Case]:
    made = {
        name: Case(
            name, str(tiny_model(family, shape)), runs=BRIEF, tensor_split=(1, 0), slot_layers=((), (2, 3, 4))
        )
        for name, (family, shape) in MODELS.items()
    }
    first = made["qwen3moe mixed"] = replace(made["qwen3moe mixed"], runs=RUNS)
    made["all"] = replace(first, name="all", slot_layers=((), (0, 1, 2, 3, 4)), runs=BRIEF)
    small = Settings(n_batch=128, n_ubatch=24, flash_attn=True)
    made["small ubatch"] = replace(first, name="small ubatch", settings=small, runs=BRIEF[1:])
    return made


@pytest.fixture(scope="module")
def reference(
    cases: dict[str, Case], reference_lib: Path, tmp_path_factory: pytest.TempPathFactory
) -> Result:
    job = Job(
        tuple(replace(case, runs=(Run(),), tensor_split=(), slot_layers=()) for case in cases.values())
    )
    return run_worker("reference", job, tmp_path_factory.mktemp("reference"), lib_path=reference_lib)


@pytest.fixture(scope="module")
def two(cases: dict[str, Case], tmp_path_factory: pytest.TempPathFactory) -> Result:
    job = Job(tuple(cases.values()), simulated_device=FAST, further_devices=(SLOW,))
    return run_worker("spac", job, tmp_path_factory.mktemp("two"))


def test_two_devices_change_no_logit(cases, two, reference):
    assert [str(found) for case in cases.values() for found in compare(case, two, reference)] == []
    import json
    for k, v in two.meta.items():
        print(k, json.dumps(v["devices"]), {a: v["stats"][a] for a in ("steps", "blocks","blocks_host","blocks_device","graphs_prepared","blocks_streamed","blocks_divided","misses_loaded","foreseen") if a in v["stats"]})
    print(list(v["stats"]))

"""A model whose layers are on several devices, unequal ones, computes every logit as one library on the CPU.

The devices are simulated ones of different memory and speed. Each has its own slots, and its own reconciler
on its own link. tests/engine/test_several_devices.py has the engine on several devices.
"""

from dataclasses import replace

import pytest

from tools.compare import HALF, Case, Job, Run, Settings
from tools.models import Shape

SLOW = {"memory_mb": 64, "upload_gb_s": 0.5, "latency_us": 2, "delay_us": 10}
FAST = {"memory_mb": 256}
MIXED = Shape(n_layer=5, n_expert=7, n_used=3, types={"*": "Q8_0", "blk.3.ffn_*_exps": "Q4_0"})
MODELS = {
    "qwen3moe mixed": ("qwen3moe", MIXED),
    "deepseek2": ("deepseek2", Shape(n_layer=5, types={"*": "Q8_0"})),
    "gpt-oss": ("gpt-oss", Shape(n_layer=4, n_expert=5, n_used=4, types={"*": "Q8_0", "*_exps": "MXFP4"})),
}
"""Models with layers of different shapes, dense layers, biases and windows."""
RUNS = (
    Run("none resident", 0.0),
    Run("a quarter", 0.25, seed=1),
    Run("all", 1.0, seed=3),
    Run("moving", 0.5, seed=4, moving=True),
    Run("moving, not ahead", 0.5, seed=4, moving=True, ahead=False),
    Run("uploads fail", 0.5, seed=6, fail_uploads=2),
    Run("prompts streamed", 0.5, seed=12, stream_tokens=17, moving=True),
    Run("looking ahead, moving", 0.5, seed=19, lookahead=1, moving=True),
    Run("in place", 0.5, seed=27, in_place=True, moving=True),
    Run("misses loaded, moving", 0.5, seed=34, miss="load", moving=True, lookahead=1),
    Run("misses loaded by recency", 0.75, seed=37, miss="load", recent=True),
    Run("compacted", 0.25, seed=5, masked=False),
)
BRIEF = RUNS[1], RUNS[3], RUNS[6]
SPLITS = {
    "one layer on the second": (2, 1), "only the output on the second": (5, 1), "none on the second": (1, 0),
    "none on the first": (0, 1),
}  # fmt: skip
"""Parts of five layers and the output, which counts as one."""


@pytest.fixture(scope="module")
def cases(tiny_model):
    made = {
        name: Case(name, str(tiny_model(family, shape)), HALF, BRIEF, script="half", tensor_split=(1, 1))
        for name, (family, shape) in MODELS.items()
    }
    first = made["qwen3moe mixed"] = replace(made["qwen3moe mixed"], runs=RUNS)
    for name, split in SPLITS.items():
        made[name] = replace(first, name=name, tensor_split=split, runs=BRIEF[1:])
    made["as the memory"] = replace(first, name="as the memory", tensor_split=(), runs=BRIEF[1:])
    small = Settings(n_batch=128, n_ubatch=24, flash_attn=True)
    made["small ubatch"] = replace(first, name="small ubatch", settings=small, runs=BRIEF[1:])
    made["read, not mapped"] = replace(first, name="read, not mapped", use_mmap=False, runs=BRIEF[1:])
    return made


@pytest.fixture(scope="module")
def two(cases, equal):
    """Return the results of two devices, which are the reference's."""
    return equal(Job(tuple(cases.values()), simulated_device=FAST, further_devices=(SLOW,)))


def test_three_devices_change_no_logit(cases, equal):
    chosen = [
        replace(cases[name], tensor_split=(1, 1, 1), runs=(*BRIEF, *RUNS[8:9]))
        for name in ("qwen3moe mixed", "gpt-oss")
    ]
    job = Job(tuple(chosen), simulated_device=SLOW, further_devices=(FAST, {**SLOW, "upload_gb_s": 0.1}))
    devices = equal(job).meta["qwen3moe mixed|moving"]["devices"]
    assert [each["name"] for each in devices] == ["simulated", "simulated1", "simulated2"]
    assert [each["n_layer"] for each in devices] == [2, 2, 1]
    assert all(each["uploads"] > 0 for each in devices)


def test_each_device_took_its_share(two):
    """The equality above would also hold if one device did all of the work."""
    meta = two.meta["qwen3moe mixed|moving"]
    first, second = meta["devices"]
    assert (first["name"], second["name"]) == ("simulated", "simulated1")
    assert (first["n_layer"], second["n_layer"]) == (3, 2)
    assert first["n_slots"] + second["n_slots"] == round(0.5 * MIXED.n_layer * MIXED.n_expert)
    for each in (first, second):
        assert each["n_slots"] > 0
        assert each["uploads"] > each["n_slots"]
        assert 0 < each["activations_hit"] < each["activations"]
    stats = two.meta["qwen3moe mixed|prompts streamed"]["stats"]
    assert stats["blocks_streamed"] > 0
    assert two.meta["qwen3moe mixed|looking ahead, moving"]["stats"]["foreseen"] > 0
    assert two.meta["qwen3moe mixed|misses loaded by recency"]["stats"]["misses_loaded"] > 0
    alone = two.meta["qwen3moe mixed|all"]["stats"]
    assert alone["blocks_device"] == alone["blocks"] > 0


def test_failures_on_one_device_are_that_device_s(two):
    devices = two.meta["qwen3moe mixed|uploads fail"]["devices"]
    assert devices[0]["upload_failures"] == 0
    assert devices[1]["upload_failures"] > 0  # the writes that fail may belong to one expert


@pytest.mark.parametrize(("split", "layers"), [
    ("one layer on the second", [4, 1]), ("only the output on the second", [5]), ("none on the second", [5]),
    ("none on the first", [5]), ("as the memory", [5]),
])  # fmt: skip
def test_layers_are_where_the_split_puts_them(two, split, layers):
    devices = two.meta[f"{split}|moving"]["devices"]
    assert [each["n_layer"] for each in devices] == layers
    assert sum(each["n_slots"] for each in devices) == round(0.5 * MIXED.n_layer * MIXED.n_expert)

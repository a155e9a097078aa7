"""Splitting experts over device and CPU changes no bit of any logit, at any residency and while it changes.

One worker process runs all cases on the stock library, and one runs them on spac's. Each model has a
part of the runs, and each run several models. tests/architectures has every architecture.
tools/compare/README.md describes the reference.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.forked import run_worker
from tools.compare import HALF, Case, Job, Run, Settings, compare
from tools.compare.driver import first_difference
from tools.compare.script import LENGTHS
from tools.models import Shape, exchange_experts, write_adapter

MODELS: dict[str, tuple[str, Shape]] = {
    "qwen3moe F32": ("qwen3moe", Shape()),
    "qwen3moe Q4_0": ("qwen3moe", Shape(n_layer=4, n_expert=8, n_used=3, types={"*": "Q4_0"})),
    "qwen3moe Q4_K M": ("qwen3moe", Shape(
        n_embd=256, n_head=8, n_ff_exp=256,
        types={"*": "Q4_K", "ffn_down_exps": "Q6_K", "blk.1.ffn_down_exps": "Q4_K", "output": "Q6_K"},
    )),
    "qwen3moe mixed": ("qwen3moe", Shape(
        types={
            "*": "Q8_0", "blk.0.ffn_*_exps": "F16", "blk.1.ffn_*_exps": "BF16", "blk.2.ffn_up_exps": "Q5_1",
        },
    )),
    "deepseek2": ("deepseek2", Shape(n_layer=4, types={"*": "Q8_0"})),
    "deepseek2 merged": ("deepseek2", Shape(types={"*_exps": "Q4_0"}, options={"merged": 1, "q_rank": 32})),
    "deepseek2 groups": ("deepseek2", Shape(
        n_expert=8, n_group=4, n_group_used=2, n_used=3, options={"merged": 1, "sigmoid": 1},
    )),
    "gpt-oss": ("gpt-oss", Shape(types={"*_exps": "MXFP4"})),
    "gpt-oss odd": ("gpt-oss", Shape(
        n_layer=5, n_expert=7, n_used=4, types={"*": "Q8_0", "*_exps": "MXFP4"},
    )),
}  # fmt: skip
# These cases run the same models with other settings of the context.
SETTINGS: dict[str, tuple[str, Settings]] = {
    "flash attention": ("qwen3moe Q4_0", Settings(flash_attn=True)),
    "flash attention, biases": ("gpt-oss", replace(HALF, flash_attn=True)),
    "small ubatch": ("deepseek2 merged", Settings(n_batch=128, n_ubatch=24)),
    "two threads": ("qwen3moe Q4_K M", replace(HALF, n_threads=2)),
    "paged": ("qwen3moe Q4_K M", replace(HALF, paged=True)),
}
RUNS = (
    Run("none resident", 0.0),
    Run("a quarter", 0.25, seed=1),
    Run("another quarter", 0.25, seed=2),
    Run("all", 1.0, seed=3),
    Run("moving", 0.5, seed=4, moving=True),
    Run("a quarter, not ahead", 0.25, seed=1, ahead=False),
    Run("moving, not ahead", 0.5, seed=4, moving=True, ahead=False),
    Run("compacted", 0.25, seed=5, masked=False),
    Run("uploads fail", 0.5, seed=6, fail_uploads=2),
    Run("prompts streamed", 0.5, seed=12, stream_tokens=17),
    Run("looking ahead", 0.5, seed=18, lookahead=1),
    Run("looking ahead, moving", 0.5, seed=19, lookahead=1, moving=True),
    Run("looking ahead, not queued ahead", 0.5, seed=20, lookahead=1, ahead=False),
    Run("misses loaded, moving", 0.5, seed=34, miss="load", moving=True, lookahead=1),
    Run("misses loaded by recency", 0.5, seed=35, miss="load", recent=True),
    Run("misses loaded, compacted", 0.5, seed=36, miss="load", masked=False),
)
CASES = [*MODELS, *SETTINGS]
CONTROLS = (
    Run("exchanged", 0.5, seed=6),
    Run("exchanged, looking ahead", 0.5, seed=21, lookahead=1),
    Run("exchanged, prompts streamed", 0.5, seed=14, stream_tokens=17),
    Run("exchanged, in place", 0.25, seed=32, in_place=True),
    Run("exchanged, misses loaded", 0.25, seed=38, miss="load"),
)
"""Runs of a copy of the model in which two experts are exchanged."""


def some(runs: tuple[Run, ...], case: str, n: int) -> tuple[Run, ...]:
    """Return every n-th run, others for the next case. So each run meets several models and settings."""
    return runs[CASES.index(case) % n :: n]


ADAPTED = ("qwen3moe Q4_0", "deepseek2 merged", "gpt-oss")
"""Models that also run with a LoRA adapter on experts and attention."""


@pytest.fixture(scope="module")
def cases(tiny_model):
    made = {
        name: Case(name, str(tiny_model(family, shape)), HALF, some(RUNS, name, 3), script="half")
        for name, (family, shape) in MODELS.items()
    }
    for name, (model, settings) in SETTINGS.items():
        # One case has more than 512 positions. Two threads spin long on a busy machine.
        script = {"flash attention": "full", "two threads": "short"}.get(name, "half")
        runs = some(RUNS, name, 3)
        made[name] = replace(made[model], name=name, settings=settings, script=script, runs=runs)
    for name in ADAPTED:
        path = Path(made[name].model)
        adapter = write_adapter(path.with_suffix(".adapter"), path)
        made[f"{name} LoRA"] = replace(made[name], name=f"{name} LoRA", lora=str(adapter), runs=RUNS[:4])
    return made


@pytest.fixture(scope="module")
def altered(cases, tmp_path_factory):
    """Return the runs of copies of the models in which two experts are exchanged."""
    folder, copies, made = tmp_path_factory.mktemp("altered"), {}, []
    for name in CASES:
        path = Path(cases[name].model)
        if path not in copies:
            copies[path] = str(exchange_experts(path, folder / path.name))
        runs = some(CONTROLS, name, 2)
        made.append(replace(cases[name], model=copies[path], runs=runs, script="first"))
    return run_worker("spac", Job(tuple(made)), folder)


@pytest.mark.parametrize("case", [*CASES, *(f"{name} LoRA" for name in ADAPTED)])
def test_every_logit_equals_the_reference(case, cases, ours, reference):
    assert [str(found) for found in compare(cases[case], ours, reference)] == []
    if case.endswith(" LoRA"):
        plain = reference.logits[case.removesuffix(" LoRA"), "reference"]["prompt"]
        assert not np.array_equal(reference.logits[case, "reference"]["prompt"], plain), "it has an effect"


@pytest.mark.parametrize("case", CASES)
def test_the_comparison_sees_errors(case, altered, reference):
    for run in some(CONTROLS, case, 2):
        expected = {"prompt": reference.logits[case, "reference"]["prompt"]}
        assert first_difference(case, run.name, altered.logits[case, run.name], expected) is not None


@pytest.mark.parametrize(("case", "run"), [(case, run) for case in CASES for run in some(RUNS, case, 3)])
def test_the_device_took_its_share(case, run, ours):
    """The equality above would also hold if nothing ever ran on the device."""
    stats, resident = (ours.meta[f"{case}|{run.name}"][name] for name in ("stats", "resident"))
    assert resident == round(run.share * n_experts_of(case)) or run.fail_uploads
    if run.share == 0.0:
        assert stats["blocks_host"] == stats["blocks"] > 0
    elif run.share == 1.0:
        assert stats["blocks_device"] == stats["blocks"] > 0
        assert stats["activations_hit"] == stats["activations"] > 0
    else:
        assert 0 < stats["activations_hit"] < stats["activations"]
    if not run.masked:
        assert stats["ahead_ns"] == 0  # queueing ahead needs the masks
    if run.lookahead:
        assert stats["foreseen"] > 0
        assert stats["foreseen_right"] <= stats["foreseen"]
    if run.fail_uploads:
        assert stats["upload_failures"] > 0
    if not run.moving:  # a plan that moves may leave no slot to a miss
        assert (stats["misses_loaded"] > 0) == (run.miss != "cpu")
    assert stats["load_bytes"] >= stats["misses_loaded"]
    if run.miss == "load" and not run.moving:
        assert stats["evictions"] > 0
    if run.stream_tokens:
        large = SETTINGS.get(case, ("", HALF))[1].n_ubatch >= run.stream_tokens
        assert (stats["blocks_streamed"] > 0) == large
        assert (stats["stream_slot_bytes"] > 0) == large
        assert stats["uploads"] == resident
        assert stats["evictions"] == 0
    if run.moving:
        assert stats["uploads"] > resident
        assert stats["evictions"] > 0


def n_experts_of(case: str) -> int:
    """Return the number of experts of a case's model over all its MoE layers."""
    family, shape = MODELS[SETTINGS[case][0] if case in SETTINGS else case]
    return (shape.n_layer - (shape.n_dense if family == "deepseek2" else 0)) * shape.n_expert


def test_a_slow_device_changes_nothing(cases, equal):
    """Random delays before every queued operation reveal code that needs instant copies and launches."""
    runs = (
        Run("moving", 0.5, seed=8, moving=True),
        Run("a quarter", 0.25, seed=9),
        # Copies have a price here, so small ones are put together.
        Run("streamed", 0.5, seed=15, stream_tokens=17),
    )
    chosen = [replace(cases[name], runs=runs) for name in ("qwen3moe Q4_0", "gpt-oss")]
    equal(Job(tuple(chosen), simulated_device={"delay_us": 20, "latency_us": 5, "upload_gb_s": 0.5}))


@pytest.mark.parametrize("ahead", [True, False], ids=["ahead", "not ahead"])
def test_graphs_of_changing_lengths_are_prepared_once(cases, reference_lib, tmp_path_factory, ahead):
    runs = Run("a quarter", 0.25, seed=16, ahead=ahead), Run("moving", 0.5, seed=17, moving=True, ahead=ahead)
    names = ("qwen3moe Q4_0", "deepseek2 merged", "gpt-oss", "flash attention")
    job = Job(tuple(replace(cases[name], runs=runs, script="lengths") for name in names))
    expected = Job(tuple(replace(case, runs=(Run(),)) for case in job.cases))
    reference = run_worker(
        "reference", expected, tmp_path_factory.mktemp("reference"), lib_path=reference_lib
    )
    result = run_worker("spac", job, tmp_path_factory.mktemp("spac"))
    assert [str(d) for case in job.cases for d in compare(case, result, reference)] == []
    for case in job.cases:
        first, second = (result.meta[f"{case.name}|{run.name}"]["stats"] for run in runs)
        assert first["graphs_prepared"] == 1 + len(set(LENGTHS))
        assert second["graphs_prepared"] == 0


def test_streamed_prompts_wait_for_their_experts(cases, reference, equal, tmp_path):
    """This holds on a slow link. The negative control has streams that do not wait for each other."""
    runs = (
        Run("streamed", 0.0, stream_tokens=17),
        Run("in motion", 0.5, seed=13, moving=True, stream_tokens=17),
    )
    chosen = [replace(cases[name], runs=runs) for name in ("qwen3moe Q4_K M", "deepseek2 merged", "gpt-oss")]
    device = {"delay_us": 20, "upload_gb_s": 0.02}
    equal(Job(tuple(chosen), simulated_device=device))
    early = replace(chosen[0], runs=runs[:1])
    result = run_worker("spac", Job((early,), simulated_device={**device, "fault": "unordered"}), tmp_path)
    assert [difference.run for difference in compare(early, result, reference)] == ["streamed"]


def test_streamed_prompts_hold_the_slots_that_they_are_copied_from(cases, reference_lib, tmp_path_factory):
    """The plan evicts residents that are still to be copied."""
    run = Run("held", 0.6, seed=16, midway=True, stream_tokens=17)
    case = replace(cases["qwen3moe Q4_K M"], runs=(run,), script="prompts")
    folder = tmp_path_factory.mktemp("held")
    reference = run_worker("reference", Job((replace(case, runs=(Run(),)),)), folder, lib_path=reference_lib)
    result = run_worker("spac", Job((case,), simulated_device={"upload_gb_s": 0.01}), folder)
    assert [str(d) for d in compare(case, result, reference)] == []
    stats = result.meta[f"{case.name}|{run.name}"]["stats"]
    assert isinstance(stats, dict)
    assert stats["evictions"] > 0
    assert stats["stream_slot_bytes"] > 0


def test_partly_pinned_experts(cases, equal):
    """Copies come from pinned memory and through the ring. Experts that lie across a border are read late."""
    runs = (
        Run("moving", 0.5, seed=22, moving=True),
        Run("streamed", 0.5, seed=23, moving=True, stream_tokens=17),
        Run("looking ahead", 0.25, seed=24, lookahead=1),
    )
    for name in ("qwen3moe Q4_K M", "deepseek2 merged", "gpt-oss odd"):
        case = replace(cases[name], runs=runs)
        pinning = {"limit": Path(case.model).stat().st_size // 2, "slice": 16 << 10}
        result = equal(Job((case,), simulated_device={"delay_us": 20, "pin_limit_mb": 1024}, pinning=pinning))
        assert min(result.meta[f"{name}|moving"]["host_bytes"]) > 0, "both pinned and pageable"


def test_hand_overs_in_place(cases, equal):
    """The hand-off without copies gives the same logits, however it is combined with other settings."""
    runs = (
        Run("in place", 0.25, seed=26, in_place=True),
        Run("in place, moving, looking ahead", 0.5, seed=27, in_place=True, moving=True, lookahead=1),
        Run("in place, not ahead", 0.5, seed=28, in_place=True, ahead=False, lookahead=1),
        Run("in place, none resident", 0.0, in_place=True),
        Run("in place, all", 1.0, seed=29, in_place=True),
        Run("in place, compacted", 0.25, seed=30, in_place=True, masked=False),
        Run("in place, prompts streamed", 0.5, seed=31, in_place=True, stream_tokens=17),
        Run("by copies", 0.25, seed=33),
    )
    names = ("qwen3moe Q4_0", "deepseek2 merged", "gpt-oss odd")
    job = Job(tuple(replace(cases[name], runs=runs) for name in names), simulated_device={"delay_us": 20})
    result = equal(job)
    for (
        name
    ) in names:  # Graphs are prepared anew where the way of the hand-off changes: both ways were taken.
        assert result.meta[f"{name}|by copies"]["stats"]["graphs_prepared"] > 0


def test_models_side_by_side(cases, equal):
    """Three models with different numbers of layers and experts decode at the same time on one device."""
    runs = (Run("moving", 0.5, seed=10, moving=True), Run("all", 1.0, seed=11))
    names = ("qwen3moe Q4_0", "deepseek2 groups", "gpt-oss odd")
    result = equal(Job(tuple(replace(cases[name], runs=runs) for name in names), together=True))
    assert len(result.logits) == len(names) * len(runs)

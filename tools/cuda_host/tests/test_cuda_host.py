"""spac's CUDA build runs on the pretend card: real ggml-cuda host code, spac's real backend, kernels that do
nothing.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tools.cuda_host.build import ROOT
from tools.cuda_host.jobs import Job, JobError, Result, python, run, settings
from tools.models import Shape, write_model

QUARTER = {"slots": "25%", "scheduler": "static", "lookahead": 3}
ALL = QUARTER | {"slots": "100%"}
ALLOCATIONS = ("device_alloc", "device_free", "host_alloc", "host_free", "host_register", "stream_create")
CAPTURES = ("graph_capture", "graph_instantiate", "graph_update")


def run_clean(job: Job, package: Path) -> Result:
    result = run(job, package)
    assert result.misuse == {}
    return result


def test_the_card_is_found(package: Path) -> None:
    code = "from spac import _core; print([device.name for device in _core.devices()])"
    done = python(package, "-c", code)
    assert done.stdout.strip() == "['CUDA0', 'simulated']", done.stderr


WHOLE: dict[str, tuple[dict[str, Any], bool]] = {
    "all": ({}, True),
    "draft": ({"draft": True, "draft_length": 2}, True),
    "two cards": ({"device": "CUDA0,CUDA1"}, True),
    "several": ({"parallel": 2}, True),
    "slots": ({"slots": "100%"}, False),
    "limit": ({"vram_limit": "285M"}, False),  # The margin is 256 MiB.
}


@pytest.mark.parametrize(("options", "whole"), WHOLE.values(), ids=WHOLE)
def test_a_model_whose_experts_all_fit(package: Path, options: dict[str, Any], whole: bool) -> None:
    """It runs on the card itself, without the split, unless the user asks for slots or leaves too little."""
    code = f"""
from spac import demo
from spac.config import EngineConfig
from spac.engine import Engine
options = {{"device": "CUDA0", "ctx": 512, "state": "off", "threads": 1}} | {options}
options["draft"] = demo.DRAFT if options.get("draft") else None
with Engine(EngineConfig(demo.TARGET, **options)) as engine:
    generation = engine.generate("def f(n):", 12)
    list(generation)
    print(engine.experts is None, generation.stats.hit_rate is None)
"""
    done = python(package, "-c", code, **settings(CARDS=2, EXECUTE="", VOCABULARY=4096))
    assert done.stdout.split() == [str(whole)] * 2, done.stderr


@pytest.mark.parametrize("scheduler", ["logistic", "moe-spac", "lru", "ewma", "static", "none"])
@pytest.mark.parametrize("masked", [True, False])
def test_schedulers(package: Path, scheduler: str, masked: bool) -> None:
    options = {"slots": "25%", "scheduler": scheduler}
    run_clean(Job(options=options, draft_length=4, masked=masked, ahead=False), package)


CARDS: list[dict[str, int]] = [
    {},
    {"READ_ONLY": 0},
    {"REGISTER": 0, "PINNED_MB": 0},
    {"KERNEL_US": 5, "COPY_US": 10, "GB_S": 10},
    {"CC": 80},
    {"MEMORY_MB": 80, "CC": 80},  # on newer ones cuBLAS takes 32 MiB a context
    {"MEM_OPS": 0},
]


@pytest.mark.parametrize("card", CARDS, ids=str)
def test_cards(package: Path, card: dict[str, int]) -> None:
    """Each card streams a prompt and runs steps."""
    job = Job(draft_length=4, sentences=40, options={"slots": "25%", "stream_batch": 32}, card=card)
    result = run_clean(job, package)
    refused = card.get("READ_ONLY") == 0 or card.get("REGISTER") == 0
    assert result.host_memory == ("staged" if refused else "pinned mapping")
    assert any("they leave" in note for note in result.notes) == ("MEMORY_MB" in card)
    said = any("has no stream memory operations that work" in note for note in result.notes)
    assert said == (card.get("MEM_OPS") == 0)


@pytest.mark.parametrize("ahead", [True, False])
@pytest.mark.parametrize("draft_length", [0, 4])
def test_steps_at_rest(package: Path, ahead: bool, draft_length: int) -> None:
    """When nothing moves and its length stays, a step has no allocation, no capture and no single kernel."""
    job = Job(options=QUARTER, draft_length=draft_length, ahead=ahead, tokens=24 * (draft_length + 1))
    result = run_clean(job, package)
    n = result.n_layers
    for step in result.steps[-4:]:
        assert not any(step[kind] for kind in (*ALLOCATIONS, *CAPTURES, "kernel", "device_synchronize"))
        assert step["pageable_to_host"] == step["pageable_to_device"] == 0
        assert step.stats["host_waits"] == step.stats["blocks"] == n
        waits = ("write_value", "wait_value") if ahead else ("event_record", "event_synchronize")
        assert [step[kind] for kind in waits] == [n, n]


SEVERAL: dict[str, dict[str, Any]] = {
    "as it is": {},
    "not ahead": {"ahead": False},
    "in pairs": {"masked": False},
    "misses loaded": {"options": {"scheduler": "lru", "miss": "load"}},
    "slots change": {"options": {"scheduler": "lru"}, "changing_slots": True},
    "main": {"options": {"main_gpu": 1, "split_mode": "none"}},
    "waiting": {"options": {"tensor_split": (1.0, 3.0)}, "card": {"CARDS": 2, "IMPLICIT": 1}},
    "three": {
        "options": {"tensor_split": (1.0, 1.0, 1.0), "device": "CUDA0,CUDA1,CUDA2"},
        "card": {"CARDS": 3, "READ_ONLY": 0},
    },
}


@pytest.mark.parametrize("changes", SEVERAL.values(), ids=SEVERAL)
def test_several_cards(package: Path, changes: dict[str, Any]) -> None:
    """Each stream and kernel reaches the memory of its own card only, and the card is the current one."""
    options = {"device": "CUDA0,CUDA1", "slots": "25%", "stream_batch": 32} | changes.get("options", {})
    job = Job(draft_length=4, sentences=20, tokens=40, card={"CARDS": 2})
    result = run_clean(replace(job, **changes | {"options": options}), package)
    cards = ["CUDA1"] if "main_gpu" in options else options["device"].split(",")
    assert list(result.hits) == cards
    assert all(hits > 0 for hits in result.hits.values())


WRONG_CARD = """
import ctypes, json, sys
runtime = ctypes.CDLL(sys.argv[1])
def call(name, *given):
    return getattr(runtime, name)(*given)
memory, stream, event = ([ctypes.c_void_p() for _ in range(2)] for _ in range(3))
for card in (0, 1):
    assert call("cudaSetDevice", card) == 0
    assert call("cudaMalloc", ctypes.byref(memory[card]), ctypes.c_size_t(64)) == 0
    assert call("cudaStreamCreateWithFlags", ctypes.byref(stream[card]), 1) == 0
    assert call("cudaEventCreateWithFlags", ctypes.byref(event[card]), 2) == 0
assert call("cudaSetDevice", 2) != 0
size, to_device, on_device = ctypes.c_size_t(64), 1, 3
done = [
    call("cudaMemcpyAsync", memory[0], bytes(64), size, to_device, stream[0]),
    call("cudaMemcpyAsync", memory[1], bytes(64), size, to_device, stream[0]),
    call("cudaMemsetAsync", memory[0], 0, size, stream[1]),
    call("cudaMemcpyAsync", memory[1], memory[0], size, on_device, stream[1]),
    call("cudaMemcpyPeerAsync", memory[1], 1, memory[0], 0, size, stream[0]),
    call("cudaMemcpyPeerAsync", memory[1], 0, memory[0], 1, size, stream[0]),
    call("cudaEventRecord", event[0], stream[0]),
    call("cudaEventRecord", event[0], stream[1]),
    call("cudaStreamWaitEvent", stream[1], event[0], 0),
]
report = runtime.pretend_cuda_report
report.restype = ctypes.c_char_p
print(json.dumps([[code == 0 for code in done], sum(json.loads(report())["misuse"].values())]))
"""


def test_a_full_card_is_not_a_broken_one(package: Path) -> None:
    """A layer that takes long is asked about on a stream of its own, for which a full card has no memory."""
    slow = {"FULL_QUERY": 1, "KERNEL_US": 4000}
    assert run_clean(Job(tokens=4, card=slow), package).text == run_clean(Job(tokens=4), package).text


def test_a_stream_reaches_its_own_card(package: Path) -> None:
    done = python(package, "-c", WRONG_CARD, package.parent / "libcuda.so.1", **settings(CARDS=2))
    right, misuses = json.loads(done.stdout)
    assert right == [True, False, False, False, True, False, True, False, True]
    assert misuses == 5


@pytest.mark.parametrize("answers", [True, False])
def test_copies_of_experts_are_waited_for_without_spinning(package: Path, answers: bool) -> None:
    """The reconciler asks the driver about the copies' events. If the driver answers with an error, the
    runtime waits for them."""
    card = {"GB_S": 2, "COPY_US": 100, "EVENT_QUERY": int(answers)}
    job = Job(options={"slots": "25%", "scheduler": "lru"}, tokens=24, card=card)
    result = run_clean(job, package)
    asked = sum(step["event_query"] for step in result.steps)
    waited = sum(step["event_synchronize"] for step in result.steps)
    uploads = sum(step.stats["uploads"] for step in result.steps)
    assert uploads > 0
    assert (asked > uploads / 4, waited > 0) == (answers, not answers)


@pytest.mark.parametrize("card", [{"IMPLICIT": 1}, {"IMPLICIT": 5, "KERNEL_US": 200}], ids=["all", "some"])
def test_calls_that_wait_for_the_card(package: Path, card: dict[str, int]) -> None:
    """A driver may wait inside a call for all that is queued, and let no other call in meanwhile. Code that
    lets the card continue must therefore need no call."""
    options = {"slots": "25%", "scheduler": "lru", "stream_batch": 32}
    job = Job(draft_length=4, sentences=4, tokens=16, options=options, card=card)
    result = run_clean(job, package)
    assert sum(step["wait_value"] for step in result.steps) > 0


@pytest.mark.parametrize("draft_length", [0, 4])
def test_layers_that_are_all_resident_wait_for_nothing(package: Path, draft_length: int) -> None:
    result = run_clean(Job(options=ALL, draft_length=draft_length, tokens=24 * (draft_length + 1)), package)
    for step in result.steps[-4:]:
        assert step.stats["blocks_device"] == result.n_layers
        assert step["event_synchronize"] == step["wait_value"] == step["pageable_to_host"] == 0
        assert not any(step[kind] for kind in (*ALLOCATIONS, *CAPTURES, "kernel"))


def test_changing_lengths_keep_their_graphs(package: Path) -> None:
    """A length that was there before needs no memory, no capture, and no launch of single kernels."""
    # More tokens would change the shape of the cache.
    job = Job(options=QUARTER, draft_length=4, changing_length=True, tokens=220)
    result = run_clean(job, package)
    later = result.steps[len(result.steps) // 2 : -1]  # The end of a text may have a length of its own.
    assert {step.stats["graphs_prepared"] for step in result.steps} == {0, 1}
    for kind in (*ALLOCATIONS, *CAPTURES, "kernel"):
        assert sum(step[kind] for step in later) == 0, kind
    assert sum(step.stats["graphs_prepared"] for step in later) == 0


@pytest.mark.parametrize("ahead", [True, False])
def test_changing_slots(package: Path, ahead: bool) -> None:
    """No graph that was captured for earlier slots reads their memory."""
    job = Job(options=QUARTER | {"scheduler": "lru"}, changing_slots=True, tokens=40, ahead=ahead)
    result = run_clean(job, package)
    assert sum(step["device_free"] for step in result.steps) > 0
    assert sum(step.stats["uploads"] for step in result.steps) > 0


def test_kernels_are_fused_as_in_graphs_that_are_not_cut(package: Path) -> None:
    """The fused kernels are the router, gate with up, and the weighted sum, for one token and for several."""
    result = run_clean(Job(options=QUARTER, draft_length=4, changing_length=True, tokens=80), package)
    names = " ".join({name for step in result.steps for name in step.kernels})
    for fused in ("topk_moe_cuda", "moe_weighted_reduction"):
        assert fused in names
    for single in ("unary_gated_op", "argsort", "soft_max"):
        assert single not in names


KINDS = ["qwen3moe", "deepseek2", "gpt-oss", "mixtral"]


@pytest.mark.parametrize("kind", KINDS)
def test_with_all_experts_resident_a_layer_adds_a_lookup(
    package: Path, stock: Path, tmp_path: Path, kind: str
) -> None:
    """This compares with the kernels of the unpatched library, with all layers on the card. It leaves out the
    kernel that the patches add."""
    shape = Shape(n_expert=8, types={"*": "Q8_0"})
    path = write_model(tmp_path / "model.gguf", kind, shape)
    arguments = "-m", "tools.cuda_host.kernels", path, 1, 4, 40
    ours, theirs = (
        json.loads(python(package, *arguments, **library).stdout.splitlines()[-1])
        for library in ({}, {"LLAMA_CPP_LIB_PATH": stock, "PYTHONPATH": ROOT})
    )
    for length, counts in ours.items():
        added = Counter(counts)
        added.subtract(theirs[length])
        left = {name: n for name, n in added.items() if n and "zero_masked_rows" not in name}
        assert len(left) == 1, (length, left)
        name, n = left.popitem()
        assert "k_get_rows" in name
        assert n == shape.n_layer - (shape.n_dense if kind == "deepseek2" else 0)


@pytest.mark.parametrize("kind", KINDS)
def test_other_models(package: Path, tmp_path: Path, kind: str) -> None:
    """These files have weights beside the experts, and other routers, biases and shared experts."""
    path = write_model(tmp_path / "model.gguf", kind)
    job = Job(target=str(path), vocabulary=272, sentences=8, options={"slots": "40%", "stream_batch": 32})
    for changed in (job, replace(job, masked=False), replace(job, ahead=False)):
        run_clean(changed, package)


FULL_CARDS = {
    "virtual memory": {},
    "the older pool": {"VMM": 0},
    "graphs": {"GRAPH_KB": 256},
    "handles": {"HANDLE_MB": 4},
}


def fill(package: Path, left: int, card: dict[str, int], rehearses: bool) -> tuple[list[str], str]:
    """Return the notes of a run in which a long prompt, between captured steps, needs more than is left.

    The second value is the error that ended it, without the traceback.
    """
    options = {"slots": "25%"}
    job = Job(sentences=20, tokens=12, left=left << 20, rehearses=rehearses, options=options, card=card)
    try:
        return run_clean(job, package).notes, ""
    except JobError as error:
        return [], str(error).strip().splitlines()[-1]


@pytest.mark.parametrize("card", FULL_CARDS.values(), ids=FULL_CARDS)
def test_a_full_card_ends_no_process(package: Path, card: dict[str, int]) -> None:
    """Kernels that get no memory get that of slots, or the request fails with one line.

    ggml's older pool frees its memory when the card is full. With captured graphs, 6 and 7 MB gave a thousand
    launches on freed memory.
    """
    found = [fill(package, left, card, rehearses=False) for left in (1, 2, 3, 5, 8)]
    assert any("because the device's kernels need" in note for notes, _ in found for note in notes)
    assert found[-1][1] == ""
    for _, error in found:
        assert error == "" or (error.startswith("spac.errors.OutOfMemoryError") and "--slots" in error)


@pytest.mark.parametrize("card", FULL_CARDS.values(), ids=FULL_CARDS)
def test_a_rehearsal_has_taken_what_kernels_need(package: Path, card: dict[str, int]) -> None:
    notes, error = fill(package, 1, card, rehearses=True)
    assert error == ""
    assert not any("kernels need" in note for note in notes)

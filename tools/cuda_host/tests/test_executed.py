"""A CUDA build of spac gives the same bits as the unpatched llama.cpp with CUDA, on the executing card.

The build must have the reference library, and kernels that can be executed (README.md). A kernel is
translated when it is first met, which takes seconds. Translations are kept in PRETEND_CUDA_EXECUTE, or in the
build's folder.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tools.compare import Case, Job, Run, Settings, run_worker
from tools.compare.driver import first_difference
from tools.compare.script import BATCHES
from tools.cuda_host.executed import Card, CardError, Steps, finite, kernels_folder, of_batches, strays
from tools.cuda_host.tests.conftest import TinyModel
from tools.models import Shape, exchange_experts

Q4_K_M = {"*": "Q4_K", "ffn_down_exps": "Q6_K", "blk.1.ffn_down_exps": "Q4_K", "output": "Q6_K"}
MIXED = {"*_exps": "Q8_0", "blk.0.ffn_*_exps": "F16", "blk.1.ffn_*_exps": "BF16", "blk.2.ffn_up_exps": "Q5_1"}
EIGHT = Shape(n_expert=8, n_used=3, types={"*_exps": "Q4_0"})
GROUPS = replace(
    EIGHT, n_group=4, n_group_used=2, types={"*_exps": "Q8_0"}, options={"merged": 1, "sigmoid": 1}
)
MODELS: dict[str, tuple[str, Shape]] = {
    "qwen3moe Q4_0": ("qwen3moe", EIGHT),
    "qwen3moe Q4_K M": ("qwen3moe", Shape(n_layer=2, n_embd=256, n_head=8, n_ff_exp=256, types=Q4_K_M)),
    "qwen3moe mixed": ("qwen3moe", Shape(types=MIXED)),
    "deepseek2 groups": ("deepseek2", GROUPS),
    "gpt-oss": ("gpt-oss", Shape(types={"*_exps": "MXFP4"})),
}
SETTINGS = Settings(n_ctx=256, n_batch=128, n_ubatch=128)
ALL = Run("all", 1.0, seed=3)
ALL_NOT_AHEAD = Run("all, not ahead", 1.0, seed=4, ahead=False)
ALL_FORMS = (ALL, ALL_NOT_AHEAD, Run("all, looking ahead", 1.0, seed=5, lookahead=1))
HALF = Run("half", 0.5, seed=1)
NOT_AHEAD = replace(HALF, name="half, not ahead", ahead=False)
STREAMED = replace(HALF, name="half, streamed", stream_tokens=17)
PAIRS = replace(HALF, name="half, in pairs", masked=False)
PAIRS_NOT_AHEAD = replace(PAIRS, name="half, in pairs, not ahead", ahead=False)
MOVING = Run("moving, looking ahead", 0.5, seed=7, moving=True, lookahead=1)
OTHERS_MOVING = (
    Run("moving", 0.5, seed=6, moving=True),
    Run("moving, in pairs", 0.5, seed=8, moving=True, masked=False),
)
PARTS = (HALF, NOT_AHEAD, STREAMED, PAIRS, PAIRS_NOT_AHEAD, MOVING, *OTHERS_MOVING)
EXCHANGED = Run("experts exchanged", 1.0, seed=9)
"""Run of a copy of the model in which two experts are exchanged."""
RUNS = (*ALL_FORMS, *PARTS)
BRIEF = (ALL, HALF, STREAMED, MOVING)
THOROUGH = ("qwen3moe Q4_K M", "gpt-oss")
"""Models that get all of the runs. The others get `BRIEF`."""


def runs_of(name: str) -> tuple[Run, ...]:
    return RUNS if name in THOROUGH else BRIEF


def of_models(*runs: Run) -> pytest.MarkDecorator:
    """Return the mark that makes a test for every model and those of the runs that it gets."""
    found = [(name, run) for name in MODELS for run in runs if run in runs_of(name)]
    return pytest.mark.parametrize(("name", "run"), found, ids=[f"{name}, {run.name}" for name, run in found])


@dataclass(frozen=True)
class Outcome:
    """Steps of a model's runs and of both unpatched libraries: all layers on the card, and on the CPU."""

    runs: dict[str, Steps]
    stats: dict[str, dict[str, int]]
    card: Steps
    cpu: Steps

    def near(self, run: str) -> bool:
        """Return true if a run equals both runs of the unpatched library, except for rounding."""
        return all(strays(self.runs[run], steps) <= 0.1 for steps in (self.card, self.cpu))


@pytest.fixture(scope="module")
def card(package: Path, stock: Path, tiny_model: TinyModel, tmp_path_factory: pytest.TempPathFactory) -> Card:
    card = Card(package, stock, kernels_folder(), tmp_path_factory.mktemp("executed"))
    case = Case("any", str(tiny_model("qwen3moe")), SETTINGS, script="batches")
    try:
        card.reference(Job((case,)))
    except CardError as error:
        if "has no PTX" not in str(error):
            raise
        pytest.skip(
            "the CUDA build's kernels cannot be executed: -DSPAC_CUDA_ARCHITECTURES=80-virtual "
            "-DGGML_CUDA_COMPRESSION_MODE=none"
        )
    return card


def case_of(name: str, tiny_model: TinyModel, runs: tuple[Run, ...]) -> Case:
    family, shape = MODELS[name]
    return Case(name, str(tiny_model(family, shape)), SETTINGS, runs, script="batches")


Outcomes = Callable[[str], Outcome]


@pytest.fixture(scope="module")
def outcome(
    card: Card, tiny_model: TinyModel, reference_lib: Path, tmp_path_factory: pytest.TempPathFactory
) -> Outcomes:
    """Return `get(name)`, which runs all runs of a model at its first call, and returns their outcome."""

    @functools.cache
    def get(name: str) -> Outcome:
        case = case_of(name, tiny_model, runs_of(name))
        copy = exchange_experts(Path(case.model), tmp_path_factory.mktemp("copy") / "exchanged.gguf")
        job = Job((case, replace(case, model=str(copy), runs=(EXCHANGED,))))
        # New memory of spac's card is full of NaNs, which show if it is read before it is written.
        stock, ours = card.reference(Job((case,))), card.spac(job, POISON=1)
        alone = Job((replace(case, runs=(Run(),)),))
        cpu = run_worker("reference", alone, tmp_path_factory.mktemp("cpu"), lib_path=reference_lib)
        names = [run.name for run in (*case.runs, EXCHANGED)]
        stats = {run: ours.meta[f"{name}|{run}"]["stats"] for run in names}
        theirs = (result.logits[name, "reference"] for result in (stock, cpu))
        return Outcome({run: ours.logits[name, run] for run in names}, stats, *theirs)

    return get


def assert_same(name: str, run: str, steps: Steps, expected: Steps) -> None:
    difference = first_difference(name, run, steps, expected)
    assert difference is None, str(difference)


@of_models(*ALL_FORMS)
def test_all_experts_resident(name: str, run: Run, outcome: Outcomes) -> None:
    """Every logit equals that of the unpatched CUDA library with all layers on the card."""
    found = outcome(name)
    assert_same(name, run.name, found.runs[run.name], found.card)
    stats = found.stats[run.name]
    assert stats["blocks_device"] == stats["blocks"] > 0


@pytest.mark.parametrize("name", MODELS)
def test_the_card_is_not_the_cpu(name: str, outcome: Outcomes) -> None:
    """The equality above would also hold if the CPU computed everything."""
    found = outcome(name)
    assert first_difference(name, "on the card", found.card, found.cpu) is not None
    assert strays(found.card, found.cpu) <= 0.1


@of_models(NOT_AHEAD, PAIRS_NOT_AHEAD)
def test_queued_ahead_or_not(name: str, run: Run, outcome: Outcomes) -> None:
    runs = outcome(name).runs
    assert_same(name, run.name, runs[run.name], runs[(HALF if run.masked else PAIRS).name])


@pytest.mark.parametrize("name", MODELS)
def test_streamed_batches(name: str, outcome: Outcomes) -> None:
    """The device computes all experts of streamed batches, so they have the unpatched library's bits. Other
    batches give the same bits as without streaming."""
    found = outcome(name)
    steps, least = found.runs[STREAMED.name], STREAMED.stream_tokens
    large, small = of_batches(steps, least, 1000), of_batches(steps, 1, least - 1)
    assert_same(name, "streamed", large, of_batches(found.card, least, 1000))
    assert_same(name, "not streamed", small, of_batches(found.runs[HALF.name], 1, least - 1))
    assert found.stats[STREAMED.name]["blocks_streamed"] > 0


@of_models(*PARTS)
def test_a_part_resident(name: str, run: Run, outcome: Outcomes) -> None:
    found = outcome(name)
    assert finite(found.runs[run.name])
    assert found.near(run.name)
    stats = found.stats[run.name]
    assert 0 < stats["activations_hit"] < stats["activations"]
    assert (stats["evictions"] > 0) == run.moving


@pytest.mark.parametrize("name", MODELS)
def test_the_comparison_sees_a_wrong_expert(name: str, outcome: Outcomes) -> None:
    found = outcome(name)
    steps = found.runs[EXCHANGED.name]
    for least, most in ((1, 2), *((n, n) for n in BATCHES[2:])):  # a single token may use neither of them
        seen = of_batches(steps, least, most)
        assert first_difference(name, "", seen, of_batches(found.card, least, most)) is not None
    assert not found.near(EXCHANGED.name)


def test_nothing_is_read_that_nobody_wrote(card: Card, tiny_model: TinyModel, outcome: Outcomes) -> None:
    """New memory full of zeros changes nothing. In all other tests here, it is full of NaNs."""
    name, runs = THOROUGH[0], (HALF, PAIRS)
    result = card.spac(Job((case_of(name, tiny_model, runs),)), POISON=0)
    for run in runs:
        assert_same(name, run.name, result.logits[name, run.name], outcome(name).runs[run.name])


TWO_CARDS: dict[str, tuple[str, dict[str, Any]]] = {
    "Q4_K M on both": ("qwen3moe Q4_K M", {"tensor_split": (1, 2)}),
    "gpt-oss on both": ("gpt-oss", {"tensor_split": (1, 1)}),
    "deepseek2 on both": ("deepseek2 groups", {"tensor_split": (1, 2)}),
    "Q4_K M, slots on the second": ("qwen3moe Q4_K M", {"tensor_split": (1, 0), "slot_layers": ((), (1,))}),
    "gpt-oss, slots on the second": ("gpt-oss", {"tensor_split": (1, 0), "slot_layers": ((), (1, 2))}),
}
"""Models, and their layers on two cards. Both cards have MoE layers, or the second one has slots alone."""


@pytest.mark.parametrize(("name", "places"), TWO_CARDS.values(), ids=TWO_CARDS)
def test_two_cards(card: Card, tiny_model: TinyModel, name: str, places: dict[str, Any]) -> None:
    """Every logit equals that of the unpatched CUDA library, whose layers are on the same cards."""
    case = replace(case_of(name, tiny_model, RUNS), **places)
    slots_alone = "slot_layers" in places
    expected = card.reference(
        Job((replace(case, tensor_split=(), slot_layers=()) if slots_alone else case,)),
        CARDS=1 if slots_alone else 2,
    ).logits[name, "reference"]
    ours = card.spac(Job((case,)), CARDS=2, POISON=1)
    for run in ALL_FORMS:
        assert_same(name, run.name, ours.logits[name, run.name], expected)
    for run in PARTS:
        assert strays(ours.logits[name, run.name], expected) <= 0.1, run.name
        devices = ours.meta[f"{name}|{run.name}"]["devices"]
        assert [each["name"] for each in devices] == ["CUDA0", "CUDA1"]
        assert not slots_alone or devices[1]["n_layer"] == len(places["slot_layers"][1])
        assert all(0 < each["activations_hit"] < each["activations"] for each in devices), run.name
    streamed = ours.logits[name, STREAMED.name]
    assert_same(name, "streamed", of_batches(streamed, 17, 1000), of_batches(expected, 17, 1000))


def test_rows_that_are_summed_in_parts(card: Card, tiny_model: TinyModel) -> None:
    """llama.cpp itself limits the equality. Above 8 tokens its kernels (stream-k) cut long rows into parts
    where tiles do not fill the multiprocessors evenly. The places of the cuts depend on how many experts a
    tensor stacks. Here these are slots."""
    shape = Shape(n_layer=2, n_embd=128, n_ff_exp=512, types={"*_exps": "Q4_0"})
    path = str(tiny_model("qwen3moe", shape))
    streamed = replace(STREAMED, stream_tokens=9)
    job = Job((Case("long rows", path, SETTINGS, (ALL, streamed), script="batches"),))
    for multiprocessors, cut in ((1, False), (3, True)):
        ours = card.spac(job, SM=multiprocessors).logits
        steps = ours["long rows", ALL.name]
        expected = card.reference(job, SM=multiprocessors).logits["long rows", "reference"]
        assert_same("long rows", "up to 8", of_batches(steps, 1, 8), of_batches(expected, 1, 8))
        large = of_batches(expected, 9, 1000)
        differs = first_difference("long rows", "above", of_batches(steps, 9, 1000), large)
        assert (differs is not None) == cut
        assert strays(steps, expected) <= 0.1
        # The tensor stacks as many experts as in the file, at the same places.
        assert_same("long rows", "streamed", of_batches(ours["long rows", streamed.name], 9, 1000), large)


def test_a_driver_that_pins_no_more_changes_nothing(card: Card, tiny_model: TinyModel) -> None:
    """Work that is queued ahead is written later, but pageable memory is read when its copy is queued."""
    name = "qwen3moe Q4_K M"
    large = Settings(n_ctx=2048, n_batch=2048, n_ubatch=2048)  # its staging is no longer pinned
    job = Job((replace(case_of(name, tiny_model, (HALF, MOVING)), settings=large),))
    unpinned = card.spac(job, REGISTER=0, PINNED_MB=1)
    expected = card.spac(job).logits[name, HALF.name]
    assert_same("unpinned", HALF.name, unpinned.logits[name, HALF.name], expected)
    assert strays(unpinned.logits[name, MOVING.name], expected) <= 0.1


def test_experts_that_a_token_names_twice(
    card: Card, tiny_model: TinyModel, reference_lib: Path, tmp_path: Path
) -> None:
    """In GroveMoE, two of a token's choices may share one smaller expert.

    The unpatched library's kernels for several tokens leave such rows out on CUDA (ggml-org/llama.cpp issue
    24591). So those experts run on the CPU, whose unpatched result is the right one.
    """
    runs = (ALL, HALF, STREAMED, PAIRS)
    job = Job((Case("grovemoe", str(tiny_model("grovemoe")), SETTINGS, runs, script="batches"),))
    alone = Job((replace(job.cases[0], runs=(Run(),)),))
    cpu = run_worker("reference", alone, tmp_path, lib_path=reference_lib).logits["grovemoe", "reference"]
    ours = card.spac(job, POISON=1)
    for run in runs:
        assert strays(ours.logits["grovemoe", run.name], cpu) <= 0.1

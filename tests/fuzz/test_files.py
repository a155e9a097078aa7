"""Damaged model files, given to the program as target or as draft, give a text or one line of error."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzz.driver import NO_NUMBERS, Worker, budget, check
from tests.fuzz.mutations import Seed, damaged, edits
from tools.models import Shape

pytestmark = pytest.mark.nightly

SMALL = Shape(n_layer=2, n_embd=32, n_ff=32, n_ff_exp=32)
FAMILIES = ("qwen3moe", "deepseek2", "gpt-oss")
OPTIONS = ["--prompt", "def f(", "--max-tokens", "3", "--ctx", "64", "--threads", "1", "--slots", "4"]


@pytest.fixture(scope="module")
def seeds(tiny_model):
    return [Seed.read(tiny_model(family, SMALL)) for family in FAMILIES]


def run(worker: Worker, path: Path, role: str, target: Path) -> int:
    """Return the exit code for a file given as target or as draft."""
    files = ["--target", str(path)] if role == "target" else ["--target", str(target), "--draft", str(path)]
    answer = worker([*files, *OPTIONS])
    if answer.code == 1 and answer.err.endswith(NO_NUMBERS):
        return 1
    check(answer, [*files, *OPTIONS])
    assert answer.code == 0 or path.name in answer.err, answer.err
    return answer.code


@budget(300)
@given(
    data=st.data(),
    which=st.integers(0, len(FAMILIES) - 1),
    role=st.sampled_from(["target", "target", "draft"]),
)
def test_damaged_files(data, which, role, worker, seeds, tmp_path, tiny_model):
    seed = seeds[which]
    changes = data.draw(edits(seed))
    cut = data.draw(st.none() | st.integers(0, len(seed.content))) if not changes else None
    path = tmp_path / "damaged.gguf"
    path.write_bytes(damaged(seed, changes, cut))
    run(worker, path, role, tiny_model("qwen3moe", SMALL))


@budget(60)
@given(which=st.integers(0, len(FAMILIES) - 1), share=st.floats(0, 1))
def test_files_that_end_too_early(which, share, worker, seeds, tmp_path, tiny_model):
    seed = seeds[which]
    cut = min(int(share * len(seed.content)), len(seed.content) - 1)
    path = tmp_path / "cut.gguf"
    path.write_bytes(damaged(seed, [], cut))
    assert run(worker, path, "target", path) == 2


def test_a_draft_with_a_token_that_is_no_text(worker, tmp_path, tiny_model):
    """The fuzzer found this case. The message that quotes the token could not be made."""
    target = tiny_model("qwen3moe", SMALL)
    path = tmp_path / "draft.gguf"
    content = target.read_bytes()
    assert content.count("\u0120t".encode()) > 1
    path.write_bytes(content.replace("\u0120t".encode(), b"\x8c\xfft"))
    assert run(worker, path, "draft", target) == 2


def test_experts_in_the_last_layer_only(worker, tiny_model):
    """The fuzzer found this case. A prompt whose logits are not requested leaves that layer without a row."""
    path = tiny_model("deepseek2", SMALL)
    assert run(worker, path, "target", path) == 0


def test_the_good_files_run(worker, tiny_model):
    """Otherwise the tests above would see only refusals."""
    for family in FAMILIES:
        assert run(worker, tiny_model(family, SMALL), "target", tiny_model(family, SMALL)) == 0

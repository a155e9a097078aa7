"""These tests compare every architecture with experts that the tests can make with the unpatched library.

They compare each logit at several residencies, and check that the experts are split. README.md lists the
architectures, and those that have no maker.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from gguf import GGUFReader

from tests.conftest import TinyModel
from tools.compare import Case, Job, Run, Settings, run_worker
from tools.compare.driver import Result, first_difference
from tools.models import FAMILIES

DENSE = {"llama", "qwen3"}
NAMES = sorted(set(FAMILIES) - DENSE)
RUNS = (
    Run("none", 0.0),
    Run("a quarter", 0.25, seed=1),
    Run("all", 1.0, seed=2),
    Run("moving", 0.5, seed=3, moving=True),
    Run("compacted", 0.5, seed=4, masked=False),
    Run("prompts in turns", 0.25, seed=5, stream_tokens=20),
)


@pytest.fixture(scope="module")
def cases(tiny_model: TinyModel) -> dict[str, Case]:
    settings = Settings(n_ctx=256, n_batch=128, n_ubatch=128)
    made = {}
    for name in NAMES:
        own = replace(settings, embeddings=FAMILIES[name].embeds)
        made[name] = Case(name, str(tiny_model(name)), own, RUNS, script="short")
    return made


@pytest.fixture(scope="module")
def reference(
    cases: dict[str, Case], reference_lib: Path, tmp_path_factory: pytest.TempPathFactory
) -> Result:
    job = Job(tuple(replace(case, runs=(Run(),)) for case in cases.values()))
    return run_worker("reference", job, tmp_path_factory.mktemp("reference"), lib_path=reference_lib)


@pytest.fixture(scope="module")
def ours(cases: dict[str, Case], tmp_path_factory: pytest.TempPathFactory) -> Result:
    return run_worker("spac", Job(tuple(cases.values())), tmp_path_factory.mktemp("spac"), timeout=120)


@pytest.mark.parametrize("family", NAMES)
def test_every_logit_equals_the_reference(family: str, ours: Result, reference: Result) -> None:
    expected = reference.logits[family, "reference"]
    for run in RUNS:
        difference = first_difference(family, run.name, ours.logits[family, run.name], expected)
        assert difference is None, str(difference)


def moe_blocks(path: str) -> int:
    """Return the number of MoE blocks in a file. A layer may have a second block (chunk experts). Adapters
    that tokens choose are blocks too."""
    ends = ("ffn_down_exps.weight", "ffn_down_chexps.weight", ".lora_b")
    return sum(tensor.name.endswith(ends) for tensor in GGUFReader(path).tensors)


@pytest.mark.parametrize("family", NAMES)
def test_its_experts_are_split(family: str, cases: dict[str, Case], ours: Result) -> None:
    """spac splits every MoE block, whatever its parts are. Nothing of a block is left to the CPU."""
    stats: dict[str, Any] = {run.name: ours.meta[f"{family}|{run.name}"]["stats"] for run in RUNS}
    n_layer = moe_blocks(cases[family].model)
    assert {ours.meta[f"{family}|{run.name}"]["n_layer"] for run in RUNS} == {n_layer}
    assert n_layer > 0
    every, none = stats["all"], stats["none"]
    assert every["activations_hit"] == every["activations"] == none["activations"] > 0
    assert every["blocks_device"] == every["blocks"] == none["blocks_host"] > 0
    for name in ("a quarter", "moving", "compacted"):
        assert 0 < stats[name]["activations_hit"] < stats[name]["activations"], name
    assert stats["moving"]["evictions"] > 0
    assert 0 < stats["prompts in turns"]["blocks_streamed"] < stats["prompts in turns"]["blocks"]


def test_the_readme_names_every_architecture() -> None:
    text = (Path(__file__).parent / "README.md").read_text()
    assert [name for name in NAMES if f"`{name}`" not in text] == []

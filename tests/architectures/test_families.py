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

from tools.compare import Case, Run, Settings, compare
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
def cases(tiny_model):
    settings = Settings(n_ctx=256, n_batch=128, n_ubatch=128)
    made = {}
    for name in NAMES:
        own = replace(settings, embeddings=FAMILIES[name].embeds)
        made[name] = Case(name, str(tiny_model(name)), own, RUNS, script="short")
    return made


@pytest.mark.parametrize("family", NAMES)
def test_every_logit_equals_the_reference(family, cases, ours, reference):
    assert [str(found) for found in compare(cases[family], ours, reference)] == []


def moe_blocks(path: str) -> int:
    """Return the number of MoE blocks in a file. A layer may have a second block (chunk experts). Adapters
    that tokens choose are blocks too."""
    ends = ("ffn_down_exps.weight", "ffn_down_chexps.weight", ".lora_b")
    return sum(tensor.name.endswith(ends) for tensor in GGUFReader(path).tensors)


@pytest.mark.parametrize("family", NAMES)
def test_its_experts_are_split(family, cases, ours):
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
    assert 0 < stats["prompts in turns"]["blocks_streamed"] < stats["prompts in turns"]["blocks"]


def test_experts_move_while_models_compute(ours):
    """On a busy machine, a short run of one model may be over before a copy."""
    moved = [ours.meta[f"{family}|moving"]["stats"]["evictions"] > 0 for family in NAMES]
    assert sum(moved) > len(NAMES) / 2


def test_the_readme_names_every_architecture():
    text = (Path(__file__).parent / "README.md").read_text()
    assert [name for name in NAMES if f"`{name}`" not in text] == []

"""These tests compare prediction layers (MTP) that have experts with the unpatched library's.

A target and a context of its prediction layer run as llama.cpp's `draft-mtp` runs them. Each logit and each
hidden state of both is compared. README.md lists the architectures.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from spac.engine import Engine
from tests.architectures.test_families import moe_blocks
from tests.engine.conftest import config, text_of
from tools.compare import Case, Run, Settings, compare
from tools.models import FAMILIES

NAMES = sorted(name for name, family in FAMILIES.items() if "mtp" in family.options)
LAYERS = {"step35": 3}
"""Families with several prediction layers, each of which drafts one token."""
RUNS = (
    Run("none", 0.0),
    Run("a quarter", 0.25, seed=1),
    Run("all", 1.0, seed=2),
    Run("moving", 0.5, seed=3, moving=True),
    Run("prompts in turns", 0.25, seed=5, stream_tokens=20),
)


@pytest.fixture(scope="module")
def cases(tiny_model):
    settings = Settings(n_ctx=256, n_batch=128, n_ubatch=128, mtp=True)
    shapes = {name: FAMILIES[name].default.with_prediction(LAYERS.get(name, 1)) for name in NAMES}
    files = {name: tiny_model(name, shape) for name, shape in shapes.items()}
    return {name: Case(name, str(path), settings, RUNS, script="mtp") for name, path in files.items()}


@pytest.mark.parametrize("family", NAMES)
def test_every_logit_and_state_equals_the_reference(family, cases, ours, reference):
    assert [str(found) for found in compare(cases[family], ours, reference)] == []


@pytest.mark.parametrize("family", NAMES)
def test_a_prediction_layer_is_split_like_the_others(family, cases, ours):
    stats: dict[str, Any] = {run.name: ours.meta[f"{family}|{run.name}"]["stats"] for run in RUNS}
    n_layer = moe_blocks(cases[family].model)
    assert {ours.meta[f"{family}|{run.name}"]["n_layer"] for run in RUNS} == {n_layer}
    steps = ours.logits[family, "none"]
    n_target = sum(name.endswith("states") for name in steps)
    of_prediction = [len(rows) for name, rows in steps.items() if "read by" in name or "draft" in name]
    # Some architectures leave the experts out where nobody reads a row.
    n_prediction = {len(of_prediction), sum(rows > 0 for rows in of_prediction)}
    every, none = stats["all"], stats["none"]
    assert none["blocks"] in {n_target * (n_layer - LAYERS.get(family, 1)) + n for n in n_prediction}
    assert {each["blocks"] for each in stats.values()} == {none["blocks"]}
    assert every["activations_hit"] == every["activations"] == none["activations"] > 0
    assert every["blocks_device"] == every["blocks"] == none["blocks_host"]
    for name in ("a quarter", "moving"):
        assert 0 < stats[name]["activations_hit"] < stats[name]["activations"], name
    assert stats["prompts in turns"]["blocks_streamed"] > n_layer  # The target has two prompts.


def test_an_engine_splits_every_prediction_layer(tiny_model):
    """Each of them has a graph of its own, which is planned before the engine counts the layers."""
    path = tiny_model("step35", FAMILIES["step35"].default.with_prediction(3))
    texts = []
    for draft_type in ("draft-mtp", "none"):
        with Engine(config(path, slots=0.5, draft_type=draft_type, draft_length=3)) as engine:
            texts.append(text_of(engine))
            assert engine.experts is not None
            assert engine.experts.n_layer == moe_blocks(str(path)) - 3 * (draft_type == "none")
            assert [note for note in engine.notes if "cannot be split" in note] == []
    assert texts[0] == texts[1]


def test_the_readme_names_every_architecture():
    text = (Path(__file__).parent / "README.md").read_text()
    row = next(line for line in text.splitlines() if line.startswith("| with a prediction layer"))
    assert [name for name in NAMES if f"`{name}`" not in row] == []

"""These tests compare draft models that read hidden states (EAGLE-3, DFlash) with the unpatched library's.

A target and its draft run as llama.cpp's `draft-eagle3` and `draft-dflash` run them. Each logit of both is
compared, and each hidden state that goes from one to the other. README.md lists the pairs.
"""

from __future__ import annotations

import pytest

from tests.architectures.test_families import moe_blocks
from tests.architectures.test_mtp import RUNS
from tools.compare import Case, Settings, compare
from tools.models import DRAFT_FAMILIES, write_model

PAIRS = [(target, draft) for target in ("gpt-oss", "qwen35moe") for draft in DRAFT_FAMILIES]
PAIRS.append(("deepseek4", "dflash-moe"))
NAMES = [f"{target}, {draft}" for target, draft in PAIRS]


@pytest.fixture(scope="module")
def cases(tiny_model, tmp_path_factory):
    folder, settings = tmp_path_factory.mktemp("drafts"), Settings(n_ctx=256, n_batch=128, n_ubatch=128)
    drafts = {kind: write_model(folder / f"{kind}.gguf", kind) for kind in DRAFT_FAMILIES}
    made = {}
    for name, (target, kind) in zip(NAMES, PAIRS, strict=True):
        family = DRAFT_FAMILIES[kind]
        reads, script = tuple(family.metadata(family.default)["target_layers"]), family.architecture
        own = {"draft": str(drafts[kind]), "draft_reads": reads, "script": script}
        made[name] = Case(name, str(tiny_model(target)), settings, RUNS, **own)
    return made


@pytest.mark.parametrize("name", NAMES)
def test_every_logit_and_state_equals_the_reference(name, cases, ours, reference):
    assert [str(found) for found in compare(cases[name], ours, reference)] == []


@pytest.mark.parametrize("name", NAMES)
def test_the_experts_of_both_models_are_split(name, cases, ours):
    stats = {run.name: ours.meta[f"{name}|{run.name}"]["stats"] for run in RUNS}
    n_target, n_draft = moe_blocks(cases[name].model), moe_blocks(cases[name].draft)
    assert {ours.meta[f"{name}|{run.name}"]["n_layer"] for run in RUNS} == {n_target + n_draft}
    n_batches = sum(step.endswith("inputs") for step in ours.logits[name, "none"])
    every, none = stats["all"], stats["none"]
    assert {each["blocks"] for each in stats.values()} == {n_batches * (n_target + n_draft)}
    assert every["activations_hit"] == every["activations"] == none["activations"] > 0
    assert every["blocks_device"] == every["blocks"] == none["blocks_host"]
    for run in ("a quarter", "moving"):
        assert 0 < stats[run]["activations_hit"] < stats[run]["activations"], run
    assert stats["prompts in turns"]["blocks_streamed"] == 2 * n_target

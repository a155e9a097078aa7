"""These tests compare prediction layers (MTP) that have experts with the unpatched library's.

A target and a context of its prediction layers run as llama.cpp's `draft-mtp` runs them. Each logit and each hidden
state of both is compared. README.md lists the architectures.
"""

from __future__ import annotations

import pytest

from tests.architectures.test_families import moe_blocks
from tools.compare import Case, Run, Settings, compare
from tools.models import FAMILIES

NAMES = sorted(name for name, family in FAMILIES.items() if "mtp" in family.options)
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
    shapes = {name: FAMILIES[name].default.with_prediction() for name in NAMES}
    return {
        name: Case(name, str(tiny_model(name, shape)), settings, RUNS, script="mtp")
        for name, shape in shapes.items()
    }


@pytest.mark.parametrize("family", NAMES)
def test_every_logit_and_state_equals_the_reference(family, cases, ours, reference):
    assert [str(found) for found in compare(cases[family], ours, reference)] == []

"""`spac doctor MODEL` says what a run begins with: what was measured, and what will be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from spac import env
from spac.config import EngineConfig, SamplingConfig
from spac.doctor.outlook import outlook
from spac.engine import Engine

LEARNERS = ["speed", "unit costs", "draft length", "memory", "scheduler", "scheduler thread"]


@pytest.fixture(autouse=True)
def _own_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(env.CACHE_HOME.name, str(tmp_path))
    monkeypatch.setenv(env.STATE.name, "auto")
    monkeypatch.setenv(env.DEVICE.name, "simulated")


def found(target: Path) -> dict[str, str]:
    findings = list(outlook(target, None, None))
    assert {finding.state for finding in findings} == {"ok"}
    return {finding.name: finding.found for finding in findings}


def run(target: Path, **options: Any) -> int:
    """Generate until costs are kept, and return the number of slots."""
    sampling = SamplingConfig(temp=0, ignore_eos=True)
    with Engine(EngineConfig(target, threads=1, ctx=512, sampling=sampling, **options)) as engine:
        "".join(engine.generate("def f(", 400))
        return 0 if engine.experts is None else engine.experts.slots.n_slots


def test_a_run_with_a_draft_leaves_what_the_next_one_begins_with(tiny_model: Any) -> None:
    target = tiny_model("qwen3moe")
    before = found(target)
    assert list(before) == LEARNERS
    assert "guessed at first" in before["unit costs"]
    assert "begins cold" in before["scheduler"]
    assert "last run" not in before["memory"] + before["draft length"]
    assert before["speed"] == "not known before a run"
    n_slots = run(target, draft_type="ngram-simple", draft_max=3)
    after = found(target)
    assert "tokens/s without a draft, computed from costs" in after["speed"]
    assert "measured by earlier runs" in after["unit costs"]
    assert list(after) == [*LEARNERS[:2], "expert", "draft", "verification", *LEARNERS[2:]]
    assert after["verification"].count(" for ") == 3, "for 1, 2 and 4 tokens"
    assert "at the end of the last run" in after["draft length"]
    assert f"{n_slots} of " in after["memory"]
    assert "goes on from what earlier runs learned" in after["scheduler"]


def test_on_the_cpu_alone(tiny_model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(env.DEVICE.name, "cpu")
    target = tiny_model("qwen3moe")
    assert list(found(target)) == LEARNERS[:3]
    run(target)
    assert "the median step of the model's last run" in found(target)["speed"]


def test_without_a_model_there_is_nothing_to_tell() -> None:
    assert list(outlook(None, None, None)) == []


def test_layers_of_the_target_that_draft(tiny_model: Any) -> None:
    target = tiny_model("glm4moe", n_layer=4, options={"mtp": 1})
    assert "0 to 3 by the model's own layers" in found(target)["draft length"]
    run(target, draft_type="draft-mtp")
    assert "did not pay in the last run here" in found(target)["draft length"], "they are random"

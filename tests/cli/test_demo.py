"""The first command of README.md names no model and gives no prompt."""

from __future__ import annotations

from spac import demo


def test_the_demo_pair_runs_by_itself(spac_run):
    outcome = spac_run("-n", 48, "--device", "simulated", "--stats", "json")
    assert outcome.out.startswith(demo.PROMPT)
    stats = outcome.stats
    assert stats["generated_tokens"] > 0
    assert stats["draft_types"] == ["draft-simple"]
    assert 0 < stats["acceptance"] <= 1  # a short text may be all that was foreseen
    assert 0 < stats["gpu_share"] < 1
    assert stats["uploads"] >= stats["slots_resident"] > 0


def test_a_prompt_of_ones_own_is_not_repeated(spac_run):
    outcome = spac_run("-n", 8, "-p", "class Queue:", "--device", "simulated", "--temp", 0)
    assert outcome.code == 0
    assert not outcome.out.startswith("class Queue:")

"""A run's statistics lead to advice for the user."""

from __future__ import annotations

from contextlib import closing
from types import SimpleNamespace

import pytest

from spac.config import EngineConfig, SamplingConfig
from spac.engine import Engine
from spac.llama_cpp_python.llama import Llama
from spac.stats.advice import ENOUGH_STEPS, missed_budget, unused_draft

GIB = 1 << 30


def test_a_draft_that_is_never_asked():
    advice = unused_draft({"0": 97, "4": 3}, 2 * GIB, GIB // 100, 1000, 6144)
    assert "97% of the steps" in advice
    assert "2.0 GiB would hold 200 more experts (3% of all)" in advice
    assert "\n" not in advice


@pytest.mark.parametrize(
    ("lengths", "slots"),
    [
        ({"0": ENOUGH_STEPS - 1}, 1000),  # this is too early for advice
        ({"0": 89, "4": 11}, 1000),  # the draft model is used in some steps
        ({"4": 200}, 1000),
        ({}, 1000),
        ({"0": 200}, 6144),  # all experts have a slot
    ],
)
def test_when_there_is_nothing_to_say(lengths, slots):
    assert unused_draft(lengths, 2 * GIB, GIB // 100, slots, 6144) == ""


def test_a_run_that_drafts_nothing_ends_with_a_note(tiny_model):
    options = {"draft": tiny_model("qwen3", n_layer=1), "slots": 4, "threads": 1, "ctx": 256}
    sampling = SamplingConfig(temp=0.0, ignore_eos=True)
    with Engine(
        EngineConfig(tiny_model("qwen3moe"), device="simulated", sampling=sampling, **options)
    ) as engine:
        engine.fix_draft_length(0)
        # The first token comes with the prompt, and the last step has no place for a draft.
        "".join(engine.generate("a", ENOUGH_STEPS + 2))
        assert not any("did not pay" in note for note in engine.notes), "its memory is the host's"
        engine._pair.device = SimpleNamespace(shares_host_cores=False)
        assert [note for note in engine.notes if "did not pay" in note and "more experts" in note]


def test_layers_that_could_draft_are_named(tiny_model):
    path = tiny_model("glm4moe", n_layer=4, options={"mtp": 1})
    small = {"slots": 4, "threads": 1, "ctx": 128}
    with Engine(EngineConfig(path, **small)) as engine:
        assert any("--draft-type draft-mtp" in note for note in engine.notes)
    with Engine(EngineConfig(path, draft_type="draft-mtp", **small)) as engine:
        assert not any("draft-mtp" in note for note in engine.notes)
    with Engine(EngineConfig(path, draft_length=0, **small)) as engine:
        assert not any("draft-mtp" in note for note in engine.notes)
    with closing(Llama(str(path), n_ctx=128, slots=4, n_threads=1, verbose=False)) as llm:
        assert any("--draft-type draft-mtp" in note for note in llm.notes)


def test_a_latency_budget_that_was_not_met():
    assert missed_budget(20, 0.045, 0.3) == (
        "--latency-budget 20 cannot be met: a step without a draft takes 45 ms"
    )
    assert missed_budget(50, 0.045, 0.3) == "--latency-budget 50 was not met: the first token took 300 ms"
    assert missed_budget(500, 0.045, 0.3) == missed_budget(50, 0.045, None) == ""

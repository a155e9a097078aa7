"""A run's statistics lead to advice for the user."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from spac.config import EngineConfig, SamplingConfig
from spac.engine import Engine
from spac.stats.advice import ENOUGH_STEPS, change, missed_budget, unused_draft, verdict

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
        engine._pair.placement.device = SimpleNamespace(shares_host_cores=False)
        assert [note for note in engine.notes if "did not pay" in note and "more experts" in note]


def test_a_latency_budget_that_was_not_met():
    assert missed_budget(20, 0.045, 0.3) == (
        "--latency-budget 20 cannot be met: a step without a draft takes 45 ms"
    )
    assert missed_budget(50, 0.045, 0.3) == "--latency-budget 50 was not met: the first token took 300 ms"
    assert missed_budget(500, 0.045, 0.3) == missed_budget(50, 0.045, None) == ""


ON_GPU = {
    "device": "CUDA0", "device_is_simulated": False, "steps": 200, "generated_tokens": 200,
    "tokens_per_second": 67.0, "gpu_share": 0.5, "cpu_share": 0.5, "n_experts": 6144, "slots": 1000,
    "governor": "none", "acceptance": None, "draft_lengths": {}, "disk_bytes": None, "expert_bytes": 3 << 20,
    "vram_limit": None,
}  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, "more slots, which --slots auto, a smaller --ctx"),
        ({"vram_limit": 8 << 30}, "a larger --vram-limit"),
        ({"cpu_share": 0.1}, "nothing stands out"),
        ({"slots": 6144}, "nothing stands out"),
        ({"steps": 9}, "9 steps are too few to tell"),
        ({"device": "cpu"}, "no GPU was used"),
        ({"device": None}, "no GPU was used"),
        ({"device_is_simulated": True, "steps": 9}, "--device cpu is faster"),
        ({"draft_lengths": {"0": 95, "4": 5}}, "95% of the steps did not use"),
        ({"governor": "fixed", "acceptance": 0.2}, "20.0% were accepted"),
        ({"governor": "roofline", "acceptance": 0.2}, "more slots"),
        ({"disk_bytes": 200 * (64 << 20)}, "64.0 MiB of experts were read from disk"),
    ],
)
def test_what_to_change(fields, said):
    assert said in change(ON_GPU | fields)


def test_the_verdict_is_one_sentence():
    assert verdict(ON_GPU).startswith(
        "67 tokens/s on CUDA0, GPU 50.0%, CPU 50.0% of the expert work; to change: give more slots"
    )
    assert verdict({}) == (
        "– tokens/s on the CPU; to change: no GPU was used, and `spac doctor` says if one could be."
    )

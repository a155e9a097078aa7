"""These tests run the governor in an engine: options, figures, every way to draft, runs that repeat."""

from __future__ import annotations

import pytest

from spac import _core
from spac.config import FIXED_LENGTH, LONGEST, EngineConfig, SamplingConfig
from spac.engine import Engine
from spac.errors import InputError
from spac.governor import FixedGovernor, RooflineGovernor

GREEDY = SamplingConfig(temp=0.0, ignore_eos=True)
CODE = "def add(a, b):\n    return a + b\n\n\ndef sub(a, b):\n    return a - b\n\n\n" * 2


def config(target, **options):
    defaults = {"device": "simulated", "threads": 1, "ctx": 512, "sampling": GREEDY}
    return EngineConfig(target=target, **{**defaults, **options})


@pytest.fixture(scope="module")
def target(tiny_model):
    return tiny_model("qwen3moe")


@pytest.fixture(scope="module")
def draft(tiny_model):
    return tiny_model("qwen3", n_layer=1)


@pytest.mark.parametrize(
    ("options", "governed", "longest"),
    [
        ({}, True, LONGEST),
        ({"draft_max": 5}, True, 5),
        ({"draft_length": 5}, False, 5),
        ({"deterministic": True}, False, FIXED_LENGTH),
        ({"deterministic": True, "draft_max": 3}, False, 3),
    ],
)
def test_which_governor_and_how_long(options, governed, longest):
    settings = EngineConfig(target="x.gguf", draft="d.gguf", **options)
    assert settings.is_governed == governed
    assert settings.longest_draft == longest
    assert settings.draft_types == ("draft-simple",)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"draft_max": 4, "draft_length": 4}, "one of them"),
        ({"latency_budget": 20.0, "draft_length": 4}, "latency_budget"),
        ({"latency_budget": -1.0}, "0 to"),
        ({"draft_min": 5, "draft_max": 4}, "more than"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(options, said):
    with pytest.raises(InputError, match=said):
        EngineConfig(target="x.gguf", draft="d.gguf", **options)


def test_no_draft_no_governor(target):
    with Engine(config(target)) as engine:
        generation = engine.generate("def f(", 4)
        list(generation)
        assert engine.governor is None
    assert generation.stats.governor == "none"
    assert generation.stats.draft_lengths == {}


def test_the_governor_tries_lengths_and_outlives_a_generation(target, draft):
    with Engine(config(target, draft=draft, draft_max=6, slots=0.4)) as engine:
        first = engine.generate(CODE, 40)
        list(first)
        governor = engine.governor
        assert isinstance(governor, RooflineGovernor)
        assert engine.costs.draft_time.known
        assert governor._draft is engine.costs.draft_time
        curve = governor.curve
        assert curve is not None
        second = engine.generate(CODE[:60], 24)
        list(second)
        assert engine.governor is governor
    stats = first.stats
    assert stats.governor == "roofline"
    assert stats.draft_length == 6
    assert len(stats.draft_lengths) >= 2  # 0, and the lengths that were tried
    assert set(stats.draft_lengths) <= {str(k) for k in range(7)}
    n_chosen = sum(stats.draft_lengths.values())
    assert n_chosen == stats.steps - 1  # The last step has no room for a draft.
    assert stats.drafted_tokens <= sum(int(k) * n for k, n in stats.draft_lengths.items())
    assert second.stats.generated_tokens == 24
    # A random draft is never right, and the governor has learned that.
    assert second.stats.draft_lengths["0"] > 0
    assert "0 to 6 tokens" in stats.table()


@pytest.mark.parametrize("kind", ["ngram-simple", "ngram-map-k", "ngram-mod", "ngram-cache"])
def test_drafts_by_n_grams(target, kind):
    with Engine(config(target, draft_type=kind)) as engine:
        generation = engine.generate("abcd" * 40, 60)
        list(generation)
        assert isinstance(engine.governor, RooflineGovernor)
    assert generation.stats.generated_tokens == 60
    assert len(generation.stats.draft_lengths) >= 2


def test_drafts_by_the_targets_own_layers(tiny_model):
    mtp = tiny_model("glm4moe", n_layer=4, options={"mtp": 1})
    with Engine(config(mtp, draft_type="draft-mtp", draft_max=3, slots=0.5)) as engine:
        generation = engine.generate(CODE, 40)
        list(generation)
    stats = generation.stats
    assert stats.generated_tokens == 40
    assert stats.drafted_tokens > 0
    assert set(stats.draft_lengths) <= {"0", "1", "2", "3"}


def test_a_length_that_is_fixed_for_now(target, draft):
    with Engine(config(target, draft=draft, draft_max=4)) as engine:
        for n in (3, 0):
            engine.fix_draft_length(n)
            assert isinstance(engine.governor, FixedGovernor)
            generation = engine.generate("def f(", 8)
            list(generation)
            assert set(generation.stats.draft_lengths) == {str(n)}
            assert generation.stats.governor == "fixed"
        with pytest.raises(InputError, match="0 to 4"):
            engine.fix_draft_length(5)
        engine.fix_draft_length(None)
        assert isinstance(engine.governor, RooflineGovernor)


def test_a_latency_budget_that_nothing_meets_leaves_no_drafts(target, draft):
    with Engine(config(target, draft=draft, latency_budget=1e-3)) as engine:
        generation = engine.generate("def f(", 20)
        list(generation)
        assert next(note for note in engine.notes if "latency" in note).startswith(
            "--latency-budget 0.001 cannot be met: a step without a draft takes "
        )
    assert set(generation.stats.draft_lengths) == {"0"}


def test_runs_repeat_however_long_copies_take(target, draft):
    """With `deterministic`, the residency at a verification does not depend on the speed of uploads."""

    def hits(deterministic, **speed):
        settings = config(
            target, draft=draft, draft_length=2, slots=0.4, scheduler="moe-spac", deterministic=deterministic
        )
        _core.set_simulated_device(**speed)
        try:
            with Engine(settings) as engine:
                generation = engine.generate("def f(", 24)
                text = "".join(generation)
        finally:
            _core.set_simulated_device()
        stats = generation.stats
        return text, stats.hit_rate, stats.hit_rate_distinct

    slow = {"upload_gb_s": 0.002}
    assert hits(True) == hits(True, **slow)
    assert hits(False, **slow)[1] < hits(True)[1]  # otherwise there would be nothing to wait for

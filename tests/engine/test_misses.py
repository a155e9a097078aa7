"""Steps whose misses are loaded within their layer give the same text, and the slots hold what was used."""

from __future__ import annotations

import pytest

from spac.config import EngineConfig, SamplingConfig
from spac.engine import Engine
from spac.errors import InputError

PROMPT = "def double(values):\n    return"


def config(target, **options):
    sampling = SamplingConfig(temp=0.0, ignore_eos=True)
    return EngineConfig(
        target=target, device="simulated", threads=1, ctx=256, sampling=sampling, state="off", **options
    )


@pytest.fixture(scope="module")
def target(tiny_model):
    return tiny_model("qwen3moe")


@pytest.fixture(scope="module")
def expected(target):
    with Engine(config(target, scheduler="none")) as engine:
        return "".join(engine.generate(PROMPT, 24))


@pytest.mark.parametrize("scheduler", ["lru", "logistic", "static"])
def test_the_text_is_the_same(target, expected, scheduler):
    with Engine(config(target, scheduler=scheduler, slots=9, miss="load")) as engine:
        generation = engine.generate(PROMPT, 24)
        assert "".join(generation) == expected
        stats = generation.stats
        assert stats.bytes_moved["loads"] > 0
        assert stats.gpu_share > stats.hit_rate


def test_lru_with_loads_is_a_plain_cache(target):
    """Every miss is loaded, so the prefetcher finds next to nothing to do, and the slots hold what the plan
    wants. It may find an expert that the next step has just driven out. If a step misses this expert while
    the copy is under way, the CPU computes it."""
    with Engine(config(target, scheduler="lru", slots="60%", miss="load")) as engine:
        generation = engine.generate(PROMPT, 24)
        "".join(generation)
        experts, plan = engine.experts, engine.events.driver.plan
        assert experts.settle(10)
        stats = generation.stats
        assert experts.stats["uploads"] < 0.1 * experts.stats["misses_loaded"]
        assert experts.stats["misses_cpu"] <= experts.stats["uploads"]
        assert stats.gpu_share > max(0.9, stats.hit_rate)
        wanted = plan.priority >= plan.threshold[:, None]
        assert wanted.any()
        assert (wanted <= (experts.residency() >= 0)).all()


def test_misses_on_the_cpu_are_counted(target):
    with Engine(config(target, scheduler="static", slots=3)) as engine:
        generation = engine.generate(PROMPT, 8)
        "".join(generation)
        stats = generation.stats
        assert stats.bytes_moved["loads"] == 0
        assert engine.experts.stats["misses_cpu"] > 0
        assert stats.gpu_share == stats.hit_rate


def test_only_some_values():
    with pytest.raises(InputError, match="miss"):
        EngineConfig(target="x.gguf", miss="gpu")
    with pytest.raises(InputError, match="deterministic"):
        EngineConfig(target="x.gguf", miss="load", deterministic=True)

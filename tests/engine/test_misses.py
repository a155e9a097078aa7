"""Steps whose misses are loaded within their layer give the same text, and the slots hold what was used."""

import pytest

from spac.config import EngineConfig
from spac.engine import Engine
from spac.errors import InputError
from tests.engine.conftest import PROMPT, config


def test_the_text_is_the_same_and_misses_are_counted(target):
    texts = []
    for scheduler, miss in (("static", "cpu"), ("static", "load"), ("logistic", "load")):
        with Engine(config(target, scheduler=scheduler, slots=9, miss=miss)) as engine:
            generation = engine.generate(PROMPT, 24)
            texts.append("".join(generation))
            stats, on_cpu = generation.stats, engine.experts.stats["misses_cpu"]
        if miss == "load":
            assert stats.bytes_moved["loads"] > 0
            assert stats.gpu_share > stats.hit_rate
        else:
            assert stats.bytes_moved["loads"] == 0 < on_cpu
            assert stats.gpu_share == stats.hit_rate
    assert len(set(texts)) == 1


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


def test_only_some_values():
    with pytest.raises(InputError, match="miss"):
        EngineConfig(target="x.gguf", miss="gpu")
    with pytest.raises(InputError, match="deterministic"):
        EngineConfig(target="x.gguf", miss="load", deterministic=True)

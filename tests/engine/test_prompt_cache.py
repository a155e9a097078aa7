"""Conversations take turns. One that returns continues where it stopped, in an engine and through Llama."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from spac.config import EngineConfig
from spac.engine import Engine
from spac.engine.prompt_cache import cache_bytes
from tests.engine.conftest import config as usual

FIRST, SECOND = list(range(5, 205)), list(range(100, 190)) * 2


def config(target: Path, **options: Any) -> EngineConfig:
    return usual(target, **{"ctx": 768, "slots": "25%", **options})


def read(engine: Engine, prompt: list[int]) -> int:
    generation = engine.generate(prompt, 8)
    for _ in generation:
        pass
    return generation.stats.prefilled_tokens


@pytest.mark.parametrize(("room", "again"), [({}, 1), ({"cache_ram": 64}, 1), ({"cache_ram": 0}, 200)])
def test_a_prompt_that_comes_back(target, room, again):
    with Engine(config(target, **room)) as engine:
        assert [read(engine, prompt) for prompt in (FIRST, SECOND)] == [200, 180]
        assert read(engine, FIRST) == again


@pytest.mark.parametrize(
    ("family", "settings", "read_again"),
    [
        ("qwen35moe", {}, 42),  # the last 4 tokens and the new ones
        ("qwen35moe", {"ctx_checkpoints": 0}, 338),
        ("gpt-oss", {"ubatch": 64}, 42),
        ("gpt-oss", {"ubatch": 64, "ctx_checkpoints": 0}, 338),
        ("gpt-oss", {"ubatch": 64, "swa_full": True, "ctx_checkpoints": 0}, 40),
    ],
)
def test_an_answer_that_is_left_out_of_the_next_prompt(tiny_model, family, settings, read_again):
    """Prompts of a model that reasons are like this. The next one continues before the answer began."""
    path = tiny_model(family, n_swa=16) if family == "gpt-oss" else tiny_model(family)
    prompt = [token % 250 + 5 for token in range(300)]
    with Engine(config(path, draft_type="ngram-simple", **settings)) as engine:
        for _ in engine.generate(prompt, 400):
            pass
        assert read(engine, prompt[:-2] + list(range(20, 60))) == read_again


def test_without_a_word_half_of_what_is_left_is_taken(target, monkeypatch):
    with Engine(config(target)) as engine:
        pair, chosen = engine._pair, engine.config
        models = pair.target.n_bytes
        for free, expected in ((models + 1000, 500), (models, 0), (models // 2, 0), (10**12, 8 << 30)):
            monkeypatch.setattr("spac.engine.prompt_cache.available", lambda free=free: free)
            assert cache_bytes(chosen, pair) == expected
        read_whole = config(target, load_mode="none")
        monkeypatch.setattr("spac.engine.prompt_cache.available", lambda: 1000)
        assert cache_bytes(read_whole, pair) == 500, "its pages are taken already"

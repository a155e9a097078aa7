"""Conversations take turns. One that returns continues where it stopped, in an engine and through Llama."""

from __future__ import annotations

from pathlib import Path

import pytest

from spac import Llama
from spac.config import EngineConfig, SamplingConfig
from spac.engine import Engine
from spac.engine.prompt_cache import cache_bytes
from tests.conftest import TinyModel

FIRST, SECOND = list(range(5, 205)), list(range(100, 190)) * 2
SETTINGS = {"device": "simulated", "threads": 1, "ctx": 768, "slots": "25%"}


@pytest.fixture(scope="module")
def target(tiny_model: TinyModel) -> Path:
    return tiny_model("qwen3moe")


def read(engine: Engine, prompt: list[int]) -> int:
    """Return how many tokens of the prompt were evaluated."""
    generation = engine.generate(prompt, 8)
    for _ in generation:
        pass
    return generation.stats.prefilled_tokens


@pytest.mark.parametrize(("room", "again"), [({}, 1), ({"cache_ram": 64}, 1), ({"cache_ram": 0}, 200)])
def test_a_prompt_that_comes_back(target: Path, room: dict[str, int], again: int) -> None:
    sampling = SamplingConfig(temp=0.0, ignore_eos=True)
    with Engine(EngineConfig(target=target, sampling=sampling, **SETTINGS, **room)) as engine:
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
def test_an_answer_that_is_left_out_of_the_next_prompt(
    tiny_model: TinyModel, family: str, settings: dict[str, int], read_again: int
) -> None:
    """Prompts of a model that reasons are like this. The next one continues before the answer began."""
    path = tiny_model(family, n_swa=16) if family == "gpt-oss" else tiny_model(family)
    sampling = SamplingConfig(temp=0.0, ignore_eos=True)
    prompt = [token % 250 + 5 for token in range(300)]
    config = EngineConfig(
        target=path, draft_type="ngram-simple", sampling=sampling, **{**SETTINGS, **settings}
    )
    with Engine(config) as engine:
        for _ in engine.generate(prompt, 400):
            pass
        assert read(engine, prompt[:-2] + list(range(20, 60))) == read_again


def test_the_same_through_llama(target: Path) -> None:
    llama = Llama(str(target), device="simulated", slots="25%", n_ctx=768, verbose=False, cache_ram=64)
    try:
        texts = []
        for prompt in (FIRST, SECOND, FIRST):
            texts.append(llama.create_completion(prompt, max_tokens=8, temperature=0)["choices"][0]["text"])
        assert texts[0] == texts[2]
        assert llama.stats is not None
        assert llama.stats.prefilled_tokens == 1
    finally:
        llama.close()


def test_without_a_word_half_of_what_is_left_is_taken(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Engine(EngineConfig(target=target, **SETTINGS)) as engine:
        pair, config = engine._pair, engine.config
        models = pair.target.n_bytes
        for free, expected in ((models + 1000, 500), (models, 0), (models // 2, 0), (10**12, 8 << 30)):
            monkeypatch.setattr("spac.engine.prompt_cache.available", lambda free=free: free)
            assert cache_bytes(config, pair) == expected
        read_whole = EngineConfig(target=target, load_mode="none")
        monkeypatch.setattr("spac.engine.prompt_cache.available", lambda: 1000)
        assert cache_bytes(read_whole, pair) == 500, "its pages are taken already"

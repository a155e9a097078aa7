"""Tests of engines share models, settings, texts, and the usual device after each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spac import _core, demo
from spac.config import EngineConfig, SamplingConfig
from spac.engine import Engine
from tests.conftest import TinyModel

GREEDY = SamplingConfig(temp=0.0, seed=1, ignore_eos=True)
PROMPT = "def double(values):\n    return"


def config(target: Path = demo.TARGET, **options: Any) -> EngineConfig:
    """Return settings with the simulated device, one thread and greedy sampling, and with these options."""
    defaults = {"device": "simulated", "threads": 1, "ctx": 512, "state": "off", "sampling": GREEDY}
    return EngineConfig(target=target, **{**defaults, **options})


def text_of(engine: Engine, prompt: Any = PROMPT, n: int = 16) -> str:
    return "".join(engine.generate(prompt, n))


def memory(name: str = "simulated") -> _core.DeviceMemory:
    return next(each.memory for each in _core.devices() if each.name == name)


@pytest.fixture(scope="session")
def target(tiny_model: TinyModel) -> Path:
    return tiny_model("qwen3moe")


@pytest.fixture(scope="session")
def draft(tiny_model: TinyModel) -> Path:
    return tiny_model("qwen3", n_layer=1)


@pytest.fixture(autouse=True)
def usual_device() -> Iterator[None]:
    yield
    _core.set_memory_limit("simulated", 0)
    _core.set_simulated_device()

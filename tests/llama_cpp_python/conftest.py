"""Fixtures for the tests of apps: the demo pair, and models that are loaded once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import spac
from spac.llama_cpp_python.llama import Llama
from tests.conftest import TinyModel

DEMO = Path(spac.__file__).parent / "demo"
TARGET, DRAFT = DEMO / "target.gguf", DEMO / "draft.gguf"
SMALL: dict[str, Any] = {"n_ctx": 256, "n_threads": 1, "n_threads_batch": 1, "verbose": False}
F32 = 0  # GGML_TYPE_F32
EXACT: dict[str, Any] = {**SMALL, "type_k": F32, "type_v": F32}
"""Options for models in F32. The shapes of batches then make almost no difference."""

Open = Callable[..., Llama]


@pytest.fixture
def opened() -> Iterator[Open]:
    """Yield `opened(path, **options)`, which loads a small model. The model is closed when the test ends."""
    made: list[Llama] = []

    def make(path: Path = TARGET, **options: Any) -> Llama:
        made.append(Llama(str(path), **{**SMALL, **options}))
        return made[-1]

    yield make
    for llm in made:
        llm.close()


@pytest.fixture(scope="module")
def split(tiny_model: TinyModel) -> Iterator[Llama]:
    """Yield a tiny model whose experts are on the simulated device and the CPU. Its draft model is its own
    quantized copy, which is often right."""
    draft = tiny_model("qwen3moe", types={"*": "Q4_0"})
    options = {"draft": draft, "draft_length": 4, "slots": "25%", "device": "simulated"}
    llm = Llama(str(tiny_model("qwen3moe")), **options, **EXACT)
    yield llm
    llm.close()


@pytest.fixture(scope="module")
def plain(tiny_model: TinyModel) -> Iterator[Llama]:
    """Yield the same target on llama_cpp's own loop, without split and draft."""
    llm = Llama(str(tiny_model("qwen3moe")), device="cpu", **EXACT)
    assert llm.engine is None
    yield llm
    llm.close()

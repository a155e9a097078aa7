"""Fixtures for the tests of apps: the demo pair, and models that are loaded once."""

from __future__ import annotations

from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

import spac
from spac.llama_cpp_python.llama import Llama

DEMO = Path(spac.__file__).parent / "demo"
TARGET, DRAFT = DEMO / "target.gguf", DEMO / "draft.gguf"
SMALL: dict[str, Any] = {"n_ctx": 256, "n_threads": 1, "n_threads_batch": 1, "verbose": False}
F32 = 0  # GGML_TYPE_F32
EXACT: dict[str, Any] = {**SMALL, "type_k": F32, "type_v": F32}
"""Options for models in F32. The shapes of batches then make almost no difference."""


@pytest.fixture
def opened():
    """Yield `opened(path, **options)`, which loads a small model. The model is closed when the test ends."""
    with ExitStack() as made:
        yield lambda path=TARGET, **options: made.enter_context(
            closing(Llama(str(path), **{**SMALL, **options}))
        )


@pytest.fixture(scope="module")
def split(tiny_model):
    """Yield a tiny model whose experts are on the simulated device and the CPU. Its draft model is its own
    quantized copy, which is often right."""
    draft = tiny_model("qwen3moe", types={"*": "Q4_0"})
    options = {"draft": draft, "draft_length": 4, "slots": "25%", "device": "simulated"}
    with closing(Llama(str(tiny_model("qwen3moe")), **options, **EXACT)) as llm:
        yield llm


@pytest.fixture(scope="module")
def plain(tiny_model):
    """Yield the same target on llama_cpp's own loop, without split and draft."""
    with closing(Llama(str(tiny_model("qwen3moe")), device="cpu", **EXACT)) as llm:
        assert llm.engine is None
        yield llm

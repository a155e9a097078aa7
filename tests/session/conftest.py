"""Fixtures for the tests of the session: a laboratory, and the paths of a target and its drafts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.session.lab import Lab

if TYPE_CHECKING:
    from tests.conftest import TinyModel


@pytest.fixture
def lab() -> Iterator[Lab]:
    with Lab() as made:
        yield made


@pytest.fixture
def target(tiny_model: TinyModel) -> Path:
    """Return a small dense model. As a draft of itself, it is always right."""
    return tiny_model("qwen3")


@pytest.fixture
def other(tiny_model: TinyModel) -> Path:
    """Return a model of the same vocabulary and other weights. As a draft, it is nearly always wrong."""
    return tiny_model("llama", n_layer=2, seed=7)


@pytest.fixture
def moe(tiny_model: TinyModel) -> Path:
    return tiny_model("qwen3moe")

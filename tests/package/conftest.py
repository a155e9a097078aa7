"""The modules of cmake/ that get and patch llama.cpp's source."""

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def llama_source(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "cmake"))
    import llama_source

    return llama_source

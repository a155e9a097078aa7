"""Tests of kernels share ggml, its hooks with their answers, and a separate store of measured times."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from cffi import FFI

from spac import _library
from spac.model import kernels
from tools.patches.ggml import Ggml


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the store's folder, in which every measurement is kept."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(kernels, "UNDISTURBED", 0)
    return tmp_path / "spac" / "measured"


@contextmanager
def answers_of(ffi: FFI, name: str, signature: str) -> Iterator[list[Any]]:
    """Yield the answers that the library gives through one of its pointers to functions."""
    library = ffi.dlopen(str(_library.library_path()))
    kept, given = getattr(library, name), list[Any]()

    @ffi.callback(signature)  # type: ignore[untyped-decorator]
    def ask(*operands: Any) -> Any:
        given.append(kept(*operands))
        return given[-1]

    setattr(library, name, ask)
    try:
        yield given
    finally:
        setattr(library, name, kept)


@pytest.fixture(scope="session")
def ggml() -> Ggml:
    return Ggml(_library.library_path())

"""The fixture for a separate store of measured times."""

from __future__ import annotations

from pathlib import Path

import pytest

from spac.model import kernels


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the store's folder, in which every measurement is kept."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(kernels, "UNDISTURBED", 0)
    return tmp_path / "spac" / "measured"

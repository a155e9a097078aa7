"""Fixtures for tests of translated kernels."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.cuda_host.ptx.__main__ import HEADER, precompile


@pytest.fixture(scope="session")
def precompiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the precompiled header. It is compiled once, because every test compiles a kernel."""
    folder = tmp_path_factory.mktemp("ptx")
    precompile(folder)
    return folder / HEADER


@pytest.fixture
def ptx_folder(tmp_path: Path, precompiled: Path) -> Path:
    """Return a folder for this test's kernels, with the precompiled header."""
    (tmp_path / HEADER).symlink_to(precompiled)
    return tmp_path

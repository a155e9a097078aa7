"""Fixtures of the emulator's tests: spac on the pretend card, tiny models, unpatched libraries, and the
header of translated kernels."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tools.compare import reference_library
from tools.cuda_host.build import package_of
from tools.cuda_host.ptx.__main__ import HEADER, precompile
from tools.models import FAMILIES, Shape, write_model

os.environ["SPAC_STATE"] = "off"
TinyModel = Callable[..., Path]


@pytest.fixture(scope="session")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the package of SPAC_CUDA_BUILD, which names a build folder of spac with CUDA (cmake -G Ninja),
    or the folder that `python -m tools.cuda_host --out` has left."""
    if "SPAC_CUDA_BUILD" not in os.environ:
        pytest.skip("SPAC_CUDA_BUILD names no CUDA build")
    return package_of(Path(os.environ["SPAC_CUDA_BUILD"]), tmp_path_factory.mktemp("cuda"))


@pytest.fixture(scope="session")
def stock(package: Path) -> Path:
    """Return the folder of the unpatched library on the pretend card."""
    folder = package / "spac" / "lib" / "reference"
    if not (folder / "libllama.so").is_file():
        pytest.skip("the CUDA build has no reference library (SPAC_BUILD_REFERENCE)")
    return folder


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    """Return a function that writes a random model of a family, and returns its path."""
    folder = tmp_path_factory.mktemp("models")

    def make(family: str, shape: Shape | None = None) -> Path:
        shape = shape or FAMILIES[family].default
        path = folder / f"{family}-{abs(hash(str(shape)))}.gguf"
        return path if path.is_file() else write_model(path, family, shape)

    return make


@pytest.fixture(scope="session")
def reference_lib() -> Path:
    """Return the folder of the unpatched library. The test is skipped when there is none."""
    folder = reference_library()
    if folder is None:
        pytest.skip("no unpatched library: build with -DSPAC_BUILD_REFERENCE=ON or set SPAC_REFERENCE_LIB")
    return folder


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

"""Fixtures of the Vulkan tests: the environment in which programs use Mesa's software device."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from spac.doctor.devices import with_vulkan

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the library keep_buffers.so and the program unused_binding."""
    if not with_vulkan():
        pytest.skip("built without Vulkan: build with -DSPAC_VULKAN=on")
    compiler, glslc = shutil.which("c++"), shutil.which("glslc")
    if compiler is None or glslc is None:
        pytest.skip("these tests compile a library and a shader, and need c++ and glslc")
    folder = tmp_path_factory.mktemp("vulkan")
    shader = [glslc, "-mfmt=c", "-o", folder / "unused_binding.inc", HERE / "unused_binding.comp"]
    common = [compiler, "-std=c++20", "-I", folder]
    library = ["-shared", "-fPIC", "-o", folder / "keep_buffers.so", HERE / "keep_buffers.cpp", "-ldl"]
    program = ["-o", folder / "unused_binding", HERE / "unused_binding.cpp", "-lvulkan"]
    for command in (shader, common + library, common + program):
        subprocess.run(command, check=True)
    return folder


@pytest.fixture(scope="session")
def environment(built: Path) -> dict[str, str]:
    """Return the variables of a program that uses the device. llama.cpp leaves out a software device that
    GGML_VK_VISIBLE_DEVICES does not name. keep_buffers.cpp tells why buffers are kept."""
    visible = os.environ.get("GGML_VK_VISIBLE_DEVICES", "0")
    return {"GGML_VK_VISIBLE_DEVICES": visible, "LD_PRELOAD": str(built / "keep_buffers.so")}


@pytest.fixture(scope="session")
def device(environment: dict[str, str]) -> str:
    """Return the name of the first Vulkan device."""
    code = "from spac import _core; print(*[d.name for d in _core.devices() if d.name.startswith('Vulkan')])"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    if not done.stdout.split():
        pytest.skip("no Vulkan device: Debian's mesa-vulkan-drivers has one in software")
    return done.stdout.split()[0]

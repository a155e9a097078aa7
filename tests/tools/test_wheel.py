"""The wheel's tool finds what would keep a wheel from an old machine. `.ci/run` builds and tries a wheel."""

from __future__ import annotations

import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest

from tools import wheel

SOURCE = """
void add(float * to, const float * from, int n) {
    for (int i = 0; i < n; ++i) to[i] += from[i];
}
"""


@pytest.fixture
def compiled(tmp_path: Path):
    def compile_it(name: str, *flags: str) -> Path:
        if (gcc := shutil.which("gcc")) is None:
            pytest.skip("no gcc")
        source, library = tmp_path / "add.c", tmp_path / name
        source.write_text(SOURCE)
        subprocess.run([gcc, "-O3", "-shared", "-fPIC", *flags, source, "-o", library], check=True)
        return library

    return compile_it


@pytest.mark.parametrize("flag", ["-mavx", "-mavx512f"])
def test_wide_instructions_are_found(compiled, flag: str) -> None:
    [found] = wheel.wide_instructions(compiled("libwide.so", flag))
    assert found.startswith("add: v")


def test_narrow_instructions_pass(compiled) -> None:
    assert wheel.wide_instructions(compiled("libnarrow.so", "-msse4.2")) == []


def test_a_wheel_for_every_cpu_has_no_wide_instructions(compiled, tmp_path: Path) -> None:
    path = tmp_path / "spac.whl"
    with zipfile.ZipFile(path, "w") as packed:
        packed.write(compiled("libwide.so", "-mavx"), "spac/lib/avx2/libllama.so")
    wheel.inspect(path)
    with zipfile.ZipFile(path, "a") as packed:
        packed.write(tmp_path / "libwide.so", "spac/_core.so")
    with pytest.raises(wheel.InputError, match=r"spac/_core\.so has AVX instructions: add: v"):
        wheel.inspect(path)


def test_a_library_of_another_build_is_refused(compiled, tmp_path: Path) -> None:
    path = tmp_path / "spac.whl"
    with zipfile.ZipFile(path, "w") as packed:
        packed.write(compiled("libllama.so", "-msse4.2"), "spac/lib/libllama.so")
    with pytest.raises(wheel.InputError, match="another build: spac/lib/libllama"):
        wheel.inspect(path)


def test_a_missing_wheel_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        wheel.main(["--check", str(tmp_path / "no.whl")])
    assert capsys.readouterr().err.splitlines()[-1].endswith("no.whl is not a wheel")


@pytest.mark.parametrize(
    ("release", "package"),
    [("12.8, V12.8.93", "nvidia-cublas-cu12"), ("13.0, V13.0.88", "nvidia-cublas==13.*")],
)
def test_a_cuda_wheel_needs_the_cublas_of_its_compiler(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, release: str, package: str
) -> None:
    nvcc = tmp_path / "nvcc"
    nvcc.write_text(f"#!/bin/sh\necho 'Cuda compilation tools, release {release}'\n")
    nvcc.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert wheel.cublas_package() == package


@pytest.mark.parametrize(
    ("here", "plat", "version"),
    [("2.36", "manylinux_2_28_x86_64", "2.28"), ("2.28", "manylinux_2_28_x86_64", "off"),
     ("2.36", "auto", "off"), ("2.17", "manylinux_2_28_x86_64", "off")],
)  # fmt: skip
def test_an_older_glibc_than_the_machines(
    monkeypatch: pytest.MonkeyPatch, here: str, plat: str, version: str
) -> None:
    monkeypatch.setattr(wheel.platform, "libc_ver", lambda: ("glibc", here))
    assert wheel.old_glibc(plat) == version


def test_a_second_interpreter_builds_with_the_compilers_of_the_first(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("CXX", "clang++")
    assert wheel.compilers(tmp_path) == {}
    (tmp_path / "CMakeCache.txt").write_text(
        "CMAKE_C_COMPILER:FILEPATH=/usr/bin/cc\nCMAKE_CXX_COMPILER:STRING=/usr/bin/c++\n"
        "CMAKE_C_COMPILER_LAUNCHER:STRING=ccache\n"
    )
    assert wheel.compilers(tmp_path) == {"CC": "/usr/bin/cc"}

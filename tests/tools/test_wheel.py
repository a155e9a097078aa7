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

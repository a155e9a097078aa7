"""A wheel has the library in variants, and the CPU's instruction sets choose one."""

from pathlib import Path

import pytest

from spac import _library
from spac.machine import cpu

V2 = {"sse4_2"}
V3 = V2 | {"avx", "avx2", "fma", "f16c", "bmi2"}
V4 = V3 | {"avx512f", "avx512cd", "avx512vl", "avx512dq", "avx512bw", "avx512_vnni"}


@pytest.fixture
def lib(tmp_path):
    for name in _library.VARIANTS:
        (tmp_path / name).mkdir()
    return tmp_path


@pytest.mark.parametrize(
    ("flags", "chosen"),
    [(V2, "baseline"), (V3 - {"fma"}, "baseline"), (V3, "avx2"),
     (V4 - {"avx512_vnni"}, "avx2"), (V4, "avx512"), (V4 - {"avx2"}, "baseline")],
)  # fmt: skip
def test_the_best_variant_that_the_cpu_can_run(lib, monkeypatch, flags, chosen):
    monkeypatch.delenv("SPAC_CPU_VARIANT", raising=False)
    monkeypatch.setattr(cpu, "cpu_flags", lambda: frozenset(flags))
    assert _library._variant(lib) == chosen


def test_one_library_has_no_variant(tmp_path):
    assert _library._variant(tmp_path) == ""


def test_the_environment_names_the_variant(lib, monkeypatch):
    monkeypatch.setattr(cpu, "cpu_flags", lambda: frozenset(V3))
    monkeypatch.setenv("SPAC_CPU_VARIANT", "baseline")
    assert _library._variant(lib) == "baseline"
    monkeypatch.setenv("SPAC_CPU_VARIANT", "avx512")
    with pytest.raises(ImportError, match="this CPU lacks avx512f"):
        _library._variant(lib)
    (lib / "baseline").rmdir()
    monkeypatch.setenv("SPAC_CPU_VARIANT", "baseline")
    with pytest.raises(ImportError, match="this installation has avx512, avx2"):
        _library._variant(lib)
    monkeypatch.setenv("SPAC_CPU_VARIANT", "sse")
    with pytest.raises(ImportError, match="'sse' is not one of baseline, avx2, avx512"):
        _library._variant(lib)


def test_an_old_cpu_is_told_what_it_lacks(lib, monkeypatch):
    monkeypatch.delenv("SPAC_CPU_VARIANT", raising=False)
    monkeypatch.setattr(cpu, "cpu_flags", frozenset)
    with pytest.raises(ImportError, match="this CPU lacks sse4_2: build spac from its source tree"):
        _library._variant(lib)


def test_the_build_knows_the_same_variants():
    """Every set that CMake compiles for is one that the choice asks for."""
    text = (Path(__file__).resolve().parents[2] / "cmake" / "CpuVariants.cmake").read_text()
    lines = {words[0].removeprefix("set(_flags_"): words[1:] for words in map(str.split, text.splitlines())
             if words and words[0].startswith("set(_flags_")}  # fmt: skip
    assert set(lines) == set(_library.VARIANTS)
    for name, words in lines.items():
        flags = {word.strip(")").removeprefix("-m").replace(".", "_").replace("vnni", "_vnni")
                 for word in words if word.startswith("-m")}  # fmt: skip
        assert flags == set(_library.VARIANTS[name]), name

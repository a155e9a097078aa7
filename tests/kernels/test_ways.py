"""The way in which the CPU computes is measured once per machine, kept and shown. A user can fix it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from gguf import GGMLQuantizationType
from hypothesis import given
from hypothesis import strategies as st

from spac import _core
from spac.errors import InputError
from spac.model import kernels
from spac.model.kept_times import Key

WAYS = ("ggml", "256", "512")
times = st.dictionaries(
    st.sampled_from(WAYS[1:]), st.lists(st.floats(1e-6, 1), min_size=8, max_size=8), max_size=2
).flatmap(
    lambda ours: st.lists(st.floats(1e-6, 1), min_size=8, max_size=8).map(lambda row: {"ggml": row, **ours})
)


@pytest.fixture
def kind() -> Iterator[str]:
    """Yield a type that has kernels in this build. Its ways are restored afterwards."""
    if not (names := _core.trusted_cpu_kernels()):
        pytest.skip("this build has no kernels")
    before = _core.chosen_cpu_kernels(names[0])
    yield names[0]
    _core.choose_cpu_kernels(names[0], before)


def test_every_way_that_is_there_is_measured(kind: str) -> None:
    found, running = _core.time_cpu_kernels([kind], 2, 0.0)
    assert 0 < running < 1.01  # the two times come from different clocks
    assert list(found) == [kind]
    assert next(iter(found[kind])) == "ggml"
    assert set(found[kind]) <= {*WAYS, "dense"}
    assert all(len(row) == 8 and min(row[1:]) > 0 for row in found[kind].values())
    assert all((row[0] > 0) == (way != "dense") for way, row in found[kind].items())


@given(found=times)
def test_the_fastest_way_is_chosen(found: dict[str, list[float]]) -> None:
    for i, way in enumerate(kernels.fastest(found)):
        best = min(row[i] for row in found.values())
        if way == "ggml":  # ggml stays unless another way is clearly faster
            assert found[way][i] <= best * kernels.LEAST_GAIN * (1 + 1e-9)
        else:
            assert found[way][i] == min(row[i] for name, row in found.items() if name != "ggml")
            assert found["ggml"][i] >= found[way][i] * kernels.LEAST_GAIN * (1 - 1e-9)


@given(found=times, dense=st.lists(st.floats(1e-6, 1), min_size=7, max_size=7))
def test_dense_matrices_need_a_gain_of_their_own(found: dict[str, list[float]], dense: list[float]) -> None:
    assert not any(kernels.faster_than_dense(found))
    both = {**found, "dense": [0.0, *dense]}
    ways = kernels.fastest(both)
    assert ways == kernels.fastest(found)
    for i, ours in enumerate(kernels.faster_than_dense(both)):
        assert ours == (both["dense"][i] > kernels.LEAST_GAIN * found[ways[i]][i])


def test_a_measurement_is_kept(kind: str, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = kernels.choose([kind.upper(), "F32"], 1)
    assert list(chosen) == [kind]
    assert _core.chosen_cpu_kernels(kind) == chosen[kind]
    (file,) = cache.iterdir()
    stored = json.loads(file.read_text())
    assert chosen[kind] == kernels.fastest(stored["times"][kind])
    assert kernels.kept(1) == [kind]
    assert kernels.kept(2) == []  # the kept times are for another number of threads

    def unwanted(*_: object) -> None:
        raise AssertionError("measured again")

    monkeypatch.setattr(_core, "time_cpu_kernels", unwanted)
    stored["times"][kind] = {"ggml": [1e-6] * 8, "256": [2e-6] * 8}
    file.write_text(json.dumps(stored))
    assert kernels.choose([kind], 1)[kind] == ["ggml"] * 8


@pytest.mark.parametrize("times", [7, {}, {"ggml": [1.0]}, {"512": [1.0] * 8}, {"ggml": [0.0] * 8}])
def test_times_that_cannot_be_used_are_left_out(times: object, kind: str, cache: Path) -> None:
    key = Key.of(1)
    cache.mkdir(parents=True)
    kernels.KEPT.path(key).write_text(json.dumps({"key": vars(key), "times": {kind: times}}))
    assert kernels.kept(1) == []
    assert kernels.choose([kind], 1)[kind]
    assert kernels.kept(1) == [kind]


def test_wrong_names_are_refused(kind: str) -> None:
    with pytest.raises(InputError, match="f99: no type"):
        _core.time_cpu_kernels(["f99"], 1, 0.0)
    with pytest.raises(InputError, match="0 threads"):
        _core.time_cpu_kernels([kind], 0, 0.0)
    with pytest.raises(InputError, match="3 ways, expected 8"):
        _core.choose_cpu_kernels(kind, ["ggml"] * 3)
    with pytest.raises(InputError, match="128: no way"):
        _core.choose_cpu_kernels(kind, ["128"] * 8)


def test_names_in_gguf_files_are_ggmls() -> None:
    """Every kernel's type has its name in GGUF files. A type without one would be left out silently."""
    assert set(_core.cpu_kernels()) <= {kernels.ggml_name(kind.name) for kind in GGMLQuantizationType}
    assert all(kernels.ggml_name(name) == name for name in _core.cpu_kernels())


def test_words() -> None:
    ways = {"q4_K": ["512"] * 8, "q6_K": ["ggml", *["512"] * 6, "256"]}
    assert kernels.described(ways) == "q4_K 512; q6_K ggml for 1, 512 for 2-7, 256 for 8"
    dense = {"q4_K": [True] * 8, "q8_0": [True] * 4 + [False] * 4}
    assert kernels.described_dense(dense) == "q8_0 spac's for 1-4, llama.cpp's for 5-8"


FIXED = """
from spac import _core
from spac.model import kernels
kind = _core.trusted_cpu_kernels()[0]
_core.choose_cpu_kernels(kind, ["ggml"] * 8)
print(" ".join(kernels.choose([kind], 1)[kind]))
"""


@pytest.mark.parametrize("width", ["256", "512"])
def test_a_width_can_be_fixed(width: str, kind: str, cache: Path) -> None:
    there = width in _core.time_cpu_kernels([kind], 1, 0.0)[0][kind]
    env = {**os.environ, "SPAC_CPU_KERNELS": width}
    done = subprocess.run([sys.executable, "-c", FIXED], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [width if there else "ggml"] * 8
    assert not cache.exists()


def test_a_wrong_setting_is_one_line(cache: Path) -> None:
    env = {**os.environ, "SPAC_CPU_KERNELS": "fast"}
    done = subprocess.run(
        [sys.executable, "-m", "spac.run"], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert "SPAC_CPU_KERNELS: 'fast' is not one of 0, 1, 256, 512" in done.stderr
    assert "Traceback" not in done.stderr

"""The way in which the CPU computes is measured once per machine, kept and shown. A user can fix it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spac import _core
from spac.config import EngineConfig
from spac.costs import store
from spac.engine import Engine
from spac.errors import InputError
from spac.model import kernels, pair
from spac.model.c_api import Model

WAYS = ("ggml", "256", "512")
row = st.lists(st.floats(1e-6, 1), min_size=2, max_size=2)
times = st.fixed_dictionaries({"ggml": row}, optional=dict.fromkeys(WAYS[1:], row))


@pytest.fixture
def kind():
    """Yield a type that has kernels in this build. Its ways are restored afterwards."""
    if not (names := _core.trusted_cpu_kernels()):
        pytest.skip("this build has no kernels")
    before = _core.chosen_cpu_kernels(names[0])
    yield names[0]
    _core.choose_cpu_kernels(names[0], *before)


def test_every_way_that_is_there_is_measured(kind):
    found, running = _core.time_cpu_kernels([kind], 2, 0.0)
    assert 0 < running < 1.01  # the two times come from different clocks
    assert list(found) == [kind]
    assert next(iter(found[kind])) == "ggml"
    assert set(found[kind]) <= {*WAYS, "dense"}
    assert all(several > 0 for _, several in found[kind].values())
    assert all((one > 0) == (way != "dense") for way, (one, _) in found[kind].items())


@given(found=times)
def test_the_fastest_way_is_chosen(found):
    for i, way in enumerate(kernels.fastest(found)[:2]):
        best = min(row[i] for row in found.values())
        if way == "ggml":  # ggml stays unless another way is clearly faster
            assert found[way][i] <= best * kernels.LEAST_GAIN * (1 + 1e-9)
        else:
            assert found[way][i] == min(row[i] for name, row in found.items() if name != "ggml")
            assert found["ggml"][i] >= found[way][i] * kernels.LEAST_GAIN * (1 - 1e-9)


@given(found=times, dense=st.floats(1e-6, 1))
def test_dense_matrices_need_a_gain_of_their_own(found, dense):
    one, several, ours = kernels.fastest(found)
    assert not ours
    expected = dense > kernels.LEAST_GAIN * found[several][1]
    assert kernels.fastest({**found, "dense": [0.0, dense]}) == (one, several, expected)


def test_a_measurement_is_kept(kind, cache, monkeypatch):
    chosen = kernels.choose([kind.upper(), "F32"], 1)
    assert list(chosen) == [kind]
    assert _core.chosen_cpu_kernels(kind) == chosen[kind]
    (file,) = cache.iterdir()
    times = kernels.kept_times([kind], 1)[kind]
    assert chosen[kind][:2] == kernels.fastest(times)[:2]
    assert kernels.keys_of([kind], 1)[kind].path == file
    assert kernels.kept_times([kind], 2) == {}  # the kept times are for another number of threads

    def unwanted(*_: object) -> None:
        raise AssertionError("measured again")

    monkeypatch.setattr(_core, "time_cpu_kernels", unwanted)
    store.put(kernels.keys_of([kind], 1)[kind], {"times": {"ggml": [1e-6, 3e-6], "256": [2e-6, 2e-6]}})
    assert kernels.choose([kind], 1)[kind][:2] == ("ggml", "256")


@pytest.mark.usefixtures("cache")
def test_times_that_cannot_be_used_are_left_out(kind):
    for times in (7, {}, {"ggml": [1.0]}, {"512": [1.0] * 2}, {"ggml": [0.0] * 2}, {"ggml": [1.0] * 8}):
        store.put(kernels.keys_of([kind], 1)[kind], {"times": times})
        assert kernels.kept_times([kind], 1) == {}, times
    assert kernels.choose([kind], 1)[kind]
    assert list(kernels.kept_times([kind], 1)) == [kind]


def test_wrong_names_are_refused(kind):
    with pytest.raises(InputError, match="f99: no type"):
        _core.time_cpu_kernels(["f99"], 1, 0.0)
    with pytest.raises(InputError, match="0 threads"):
        _core.time_cpu_kernels([kind], 0, 0.0)
    with pytest.raises(InputError, match="128: no variant"):
        _core.choose_cpu_kernels(kind, "ggml", "128", False)


def test_words():
    choices = {"q4_K": ("512", "512", True), "q6_K": ("ggml", "512", False), "q8_0": ("256", "256", False)}
    assert kernels.described(choices) == (
        "q4_K 512; q6_K ggml for one token, 512 for several; q8_0 256; "
        "llama.cpp's for dense matrices of q6_K, q8_0"
    )


@pytest.mark.parametrize(("types", "ours"), [({"*_exps": "Q4_0"}, True), ({}, False)])
def test_only_what_has_no_kernels_is_repacked(tiny_model, monkeypatch, types, ours):
    target = tiny_model("qwen3moe", n_expert=8, types=types)
    seen, load = [], Model

    def opened(path, devices, params, *others):
        seen.append(params.get("use_extra_bufts", True))
        return load(path, devices, params, *others)

    monkeypatch.setattr(pair, "Model", opened)
    with Engine(EngineConfig(target=target, device="cpu", ctx=64, threads=1)) as engine:
        assert list(engine.generate(engine.tokenize("def f("), 4))
    assert seen == [not (ours and "q4_0" in _core.trusted_cpu_kernels() and _core.cpu_kernels_enabled())]


OFF = """
from spac import _core
from spac.model import kernels
kernels.choose(_core.trusted_cpu_kernels(), 1)
print(_core.cpu_kernels_enabled())
"""


def test_llama_cpp_s_functions_can_be_fixed(cache):
    env = {**os.environ, "SPAC_FORM": "no-cpu-kernels"}
    done = subprocess.run([sys.executable, "-c", OFF], env=env, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
    assert not cache.exists()


def test_a_wrong_setting_is_one_line(cache):
    env = {**os.environ, "SPAC_FORM": "cpu-kernels=512"}
    done = subprocess.run(
        [sys.executable, "-m", "spac.run"], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert "SPAC_FORM: 'cpu-kernels=512' is not valid" in done.stderr
    assert "Traceback" not in done.stderr


class Clock:
    """A measurement that ends at once and records the types that it was asked for."""

    def __init__(self, running: float = 1.0) -> None:
        self.asked: list[list[str]] = []
        self._running = running

    def __call__(self, types: list[str], _threads: int, _seconds: float) -> tuple[dict[str, object], float]:
        self.asked.append(types)
        return {kind: {"ggml": [float(len(self.asked))] * 2} for kind in types}, self._running


def timed(x: float) -> dict[str, list[float]]:
    return {"ggml": [x, x]}


def test_times_are_kept_for_a_number_of_threads(cache, monkeypatch):
    clock = Clock()
    monkeypatch.setattr(_core, "time_cpu_kernels", clock)
    assert kernels.measured(["a"], 1) == {"a": timed(1)}
    assert kernels.measured(["b", "a"], 1) == {"b": timed(2), "a": timed(1)}
    assert kernels.measured(["a"], 2) == {"a": timed(3)}
    assert clock.asked == [["a"], ["b"], ["a"]]
    assert kernels.kept_times(["a", "b", "c"], 1) == {"a": timed(1), "b": timed(2)}
    assert len(list(cache.iterdir())) == 3


def test_a_disturbed_measurement_is_used_and_not_kept(cache, monkeypatch):
    monkeypatch.setattr(kernels, "UNDISTURBED", 0.9)
    for running, kept in ((0.89, {}), (0.9, {"a": timed(1)})):
        monkeypatch.setattr(_core, "time_cpu_kernels", Clock(running))
        assert kernels.measured(["a"], 1) == {"a": timed(1)}
        assert kernels.kept_times(["a"], 1) == kept


def test_a_file_that_cannot_be_used_costs_a_note(cache, monkeypatch):
    monkeypatch.setattr(_core, "time_cpu_kernels", Clock())
    cache.mkdir(parents=True)
    kernels.keys_of(["a"], 1)["a"].path.write_text("a note to myself")
    notes: list[str] = []
    assert kernels.measured(["a"], 1, notes) == {"a": timed(1)} == kernels.kept_times(["a"], 1)
    assert len(notes) == 1


def test_a_cache_that_cannot_be_written_loses_nothing(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr(_core, "time_cpu_kernels", Clock())
    assert kernels.measured(["a"], 1) == {"a": timed(1)}

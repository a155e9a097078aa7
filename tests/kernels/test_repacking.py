"""llama.cpp's repacking of weights is measured once, kept and shown. llama.cpp can decide instead."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spac import _core
from spac.config import EngineConfig
from spac.doctor import host
from spac.engine import Engine
from spac.errors import InputError
from spac.model import pair, repacking
from spac.model.c_api import Model
from spac.model.gguf.check import check_model
from spac.model.kept_times import Key

seconds = st.lists(st.floats(1e-3, 1), min_size=4, max_size=4)
some_bytes = st.tuples(st.floats(0, 1e10), st.floats(1e6, 1e10))


@pytest.fixture
def kind() -> str:
    """Return a type that llama.cpp can repack on this CPU."""
    if not (names := _core.repackable_cpu_types(["q4_0", "q4_K"])):
        pytest.skip("llama.cpp repacks nothing on this CPU")
    return names[0]


def model(types: dict[str, int], expert_types: dict[str, int]) -> SimpleNamespace:
    table = {"Q6_K": 30}
    return SimpleNamespace(
        types=types, expert_types=expert_types, table_types=table, n_expert=8, n_expert_used=2, file_size=1000
    )


def test_both_forms_are_measured(kind: str) -> None:
    found, running = _core.time_repacking([kind], 1, 0.0)
    assert 0 < running <= 1
    assert list(found) == [kind]
    assert list(found[kind]) == ["plain", "repacked"]
    assert all(len(row) == 4 and min(row) > 0 for row in found[kind].values())


def test_types_that_cannot_be_repacked() -> None:
    assert _core.repackable_cpu_types(["iq1_s", "f32", "f99"]) == []
    assert _core.quantized_cpu_types(["q4_0", "f32", "f99", "q8_K"]) == ["q4_0"]
    found, _ = _core.time_repacking(["iq1_s"], 1, 0.0)
    assert list(found["iq1_s"]) == ["plain"]


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(InputError, match="f32: no quantized type"):
        _core.time_repacking(["f32"], 1, 0.0)
    with pytest.raises(InputError, match="0 threads"):
        _core.time_repacking(["q4_0"], 0, 0.0)


def test_k_quants_of_a_file_are_measured(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """GGUF's Q4_K is ggml's q4_K. The names differ in case, and ggml's counts."""
    if "q4_K" not in _core.repackable_cpu_types(["q4_K"]):
        pytest.skip("llama.cpp does not repack q4_K on this CPU")
    monkeypatch.setattr(repacking, "SECONDS", 0.0)
    repacking.gain(model({"Q4_K": 900, "Q6_K": 100}, {"Q4_K": 800}), 1)  # type: ignore[arg-type]
    assert sorted(repacking.KEPT.load(Key.of(1))) == _core.repackable_cpu_types(["q4_K", "q6_K"])


def test_what_a_token_reads() -> None:
    read = repacking.read_bytes(model({"Q4_K": 900, "Q6_K": 100}, {"Q4_K": 800}))  # type: ignore[arg-type]
    assert read == {"Q4_K": (200, 100), "Q6_K": (0, 70)}


@given(read=some_bytes, other=some_bytes, plain=seconds, factor=st.floats(0.2, 5))
def test_the_gain_is_that_of_the_types_that_are_repacked(
    read: tuple[float, float], other: tuple[float, float], plain: list[float], factor: float
) -> None:
    alone = {"q4_0": {"plain": plain, "repacked": [x / factor for x in plain]}}
    assert repacking.gain_of({"q4_0": read}, alone) == pytest.approx(factor)
    both = {"q4_0": read, "q6_K": other}
    with_times = repacking.gain_of(both, {**alone, "q6_K": {"plain": plain}})
    without = repacking.gain_of(both, alone)
    assert all(min(1, factor) - 1e-9 <= gain <= max(1, factor) + 1e-9 for gain in (with_times, without))
    assert repacking.gain_of({"q6_K": other}, {}) == 1


def test_types_that_stay_dilute_the_gain() -> None:
    times = {"q4_0": {"plain": [1.0] * 4, "repacked": [0.5] * 4}}
    assert repacking.gain_of({"q4_0": (3e9, 0.0), "q6_K": (0.0, 1e9)}, times) == pytest.approx(4 / 2.5)


def test_an_answer_counts_all_its_tokens() -> None:
    times = {"q4_0": {"plain": [1.0, 0.5, 1.0, 0.5], "repacked": [1.0, 0.25, 1.0, 0.25]}}
    assert repacking.gain_of({"q4_0": (1e9, 1e9)}, times) == pytest.approx((128 + 128) / (128 + 64))


@pytest.mark.parametrize(("gain", "pays"), [(1.02, False), (1.04, True)])
def test_it_pays_by_more_than_a_little(monkeypatch: pytest.MonkeyPatch, gain: float, pays: bool) -> None:
    monkeypatch.setattr(repacking, "gain", lambda *_: gain)
    monkeypatch.setattr(_core, "cpu_kernels_enabled", lambda: True)
    info = model({}, {})
    for room, fits in ((0, True), (2000, True), (1000, False)):
        monkeypatch.setattr("spac.machine.host_memory.available", lambda room=room: room)
        assert repacking.repacking_pays(info, 1) == (pays and fits)  # type: ignore[arg-type]
    monkeypatch.setattr(_core, "cpu_kernels_enabled", lambda: False)
    assert repacking.repacking_pays(info, 1)  # type: ignore[arg-type]


def test_plain_weights_are_measured_again_with_other_ways(
    kind: str, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repacking, "SECONDS", 0.0)
    found = repacking.measured([kind], 1)
    (file,) = cache.iterdir()
    assert json.loads(file.read_text())["times"] == found
    new = {kind: {"plain": [1.0] * 4}}
    monkeypatch.setattr(_core, "time_repacking", lambda *_: (new, 1.0))
    assert repacking.measured([kind], 1) == found
    monkeypatch.setattr(repacking, "_ways", lambda _: ["other"])
    assert repacking.measured([kind], 1) == {kind: {"ways": ["other"], "plain": [1.0] * 4}}


@pytest.mark.parametrize(
    "times",
    [7, {"plain": [1.0] * 4}, {"ways": [], "plain": [1.0] * 3}, {"ways": [], "plain": [0.0] * 4},
     {"ways": [], "plain": [1.0] * 4, "other": []}],
)  # fmt: skip
def test_times_that_cannot_be_used_are_left_out(times: object, cache: Path) -> None:
    key = Key.of(1)
    cache.mkdir(parents=True)
    good = {"ways": [], "plain": [1.0] * 4}
    file = repacking.KEPT.path(key)
    file.write_text(json.dumps({"key": vars(key), "times": {"q4_0": times, "q4_K": good}}))
    assert repacking.KEPT.load(key) == {"q4_K": good}


@pytest.mark.parametrize("pays", [False, True])
def test_a_model_runs_either_way(tiny_model, monkeypatch: pytest.MonkeyPatch, pays: bool) -> None:
    target = tiny_model("qwen3moe", n_expert=8, types={"*_exps": "Q4_0"})
    seen, load = [], Model

    def opened(path, devices, params, *others):
        seen.append(params.get("use_extra_bufts", True))
        return load(path, devices, params, *others)

    monkeypatch.setattr(pair, "Model", opened)
    monkeypatch.setattr(pair, "repacking_pays", lambda info, threads: pays)
    with Engine(EngineConfig(target=target, device="cpu", ctx=64, threads=1)) as engine:
        tokens = list(engine.generate(engine.tokenize("def f("), 4))
    assert seen == [pays]
    assert tokens


def test_the_doctor_shows_it(tiny_model, cache: Path, kind: str) -> None:
    if not _core.cpu_kernels_enabled():
        pytest.skip("SPAC_CPU_KERNELS=0")
    target = tiny_model("qwen3moe", n_expert=8, types={"*_exps": "Q4_0"})
    (found,) = host.repacking(target)
    assert (found.state, found.why) == ("ok", "")
    assert target.name in found.found
    if _core.repackable_cpu_types(["q4_0"]):
        assert "times as fast" in found.found
    assert list(host.repacking(None)) == []
    assert list(host.repacking(tiny_model("qwen3"))) == []
    info = check_model(target)
    assert info.expert_types == {"Q4_0": info.expert_bytes}
    assert set(info.table_types) <= set(info.types)

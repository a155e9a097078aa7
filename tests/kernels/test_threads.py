"""The number of threads for a token is measured once and kept. A user can give it instead."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spac import _core
from spac.config import EngineConfig, SamplingConfig
from spac.engine import Engine
from spac.errors import InputError
from spac.model import kernels, threads
from spac.model.kept_times import Key

# isort: split
import llama_cpp.llama_cpp as api  # this import must follow spac's, because spac decides on the library


def model(types: dict[str, int], expert_types: dict[str, int]) -> Any:
    return SimpleNamespace(types=types, expert_types=expert_types)


def test_every_number_is_measured() -> None:
    seconds, running = _core.time_threads("q4_K", [1, 2, 1], 0.0)
    assert len(seconds) == 3
    assert min(seconds) > 0
    assert 0 < running <= 1


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(InputError, match="f32: no quantized type"):
        _core.time_threads("f32", [1], 0.0)
    with pytest.raises(InputError, match="0 threads"):
        _core.time_threads("q4_0", [1, 0], 0.0)
    assert _core.time_threads("q4_0", [], 0.0) == ([], 1.0)


@given(st.integers(1, 512))
def test_candidates_end_with_all_threads(most: int) -> None:
    counts = threads.candidates(most)
    assert counts == sorted(set(counts))
    assert counts[0] >= 1
    assert counts[-1] == most
    assert len(counts) <= 4


@given(st.dictionaries(st.integers(1, 64), st.floats(1e-4, 1), min_size=1))
def test_fewer_threads_are_used_only_where_they_are_as_fast(times: dict[int, float]) -> None:
    chosen = threads.fastest(times)
    assert times[chosen] <= threads.CLOSE * min(times.values())
    assert all(times[fewer] > threads.CLOSE * min(times.values()) for fewer in times if fewer < chosen)


def test_experts_decide_which_type_is_measured() -> None:
    assert threads.most_read_type(model({"Q4_K": 900, "Q6_K": 500}, {"Q4_K": 300, "Q6_K": 400})) == "q6_K"
    assert threads.most_read_type(model({"Q8_0": 900, "F32": 5000}, {})) == "q8_0"
    assert threads.most_read_type(model({"F16": 900}, {"F16": 900})) is None


def test_what_needs_no_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_core, "time_threads", None)
    assert threads.fastest_threads(model({"Q4_K": 900}, {}), 1) == 1
    assert threads.fastest_threads(model({"F16": 900}, {}), 8) == 8


def test_a_measurement_is_kept(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def measure(kind: str, counts: list[int], _: float) -> tuple[list[float], float]:
        calls.append((kind, counts))
        return [1.0, 0.5, 0.5, 0.6], 0.5

    monkeypatch.setattr(_core, "time_threads", measure)
    info = model({"Q4_K": 900}, {"Q4_K": 900})
    assert threads.fastest_threads(info, 8) == 6
    assert threads.fastest_threads(info, 8) == 6
    assert calls == [("q4_K", [4, 6, 7, 8])]
    (file,) = cache.iterdir()
    assert json.loads(file.read_text())["times"] == {"q4_K": {"4": 1.0, "6": 0.5, "7": 0.5, "8": 0.6}}


@pytest.mark.parametrize("times", [7, {}, {"x": 1.0}, {"1": 0.0}, {"1": "1"}, {"1": float("nan")}])
def test_times_that_cannot_be_used_are_left_out(times: object, cache: Path) -> None:
    key = Key.of(2)
    cache.mkdir(parents=True)
    threads.KEPT.path(key).write_text(json.dumps({"key": vars(key), "times": {"q4_K": times}}))
    assert threads.KEPT.load(key) == {}


@pytest.mark.parametrize(
    ("options", "used", "for_prompts"),
    [({}, 1, 2), ({"threads": 2}, 2, 2), ({"threads": 1}, 1, 1), ({"threads_batch": 3}, 1, 3),
     ({"deterministic": True}, 2, 2)],
)  # fmt: skip
def test_what_an_engine_computes_with(
    tiny_model: Any,
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, Any],
    used: int,
    for_prompts: int,
) -> None:
    monkeypatch.setattr("spac.model.pair.physical_cores", lambda: 2)
    monkeypatch.setattr(threads, "measured", lambda _, counts: dict.fromkeys(counts, 1.0))
    monkeypatch.setattr(threads, "most_read_type", lambda _: "q4_K")
    config = EngineConfig(target=tiny_model("qwen3moe"), device="cpu", ctx=64, **options)
    with Engine(config) as engine:
        assert engine.setting(SamplingConfig()).threads == used
        context = engine._pair.target_context
        counts = (api.llama_n_threads(context.pointer), api.llama_n_threads_batch(context.pointer))
        assert counts == (used, for_prompts)


def test_kernels_are_chosen_for_the_threads_that_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = []
    monkeypatch.setattr(kernels, "choose", lambda types, count: chosen.append((types, count)))
    monkeypatch.setattr(threads, "fastest_threads", lambda _, most: most - 2)
    models = [model({"Q4_K": 1}, {}), model({"Q8_0": 1}, {})]
    assert threads.fit_to_cpu(models, 0, 8) == 6
    assert threads.fit_to_cpu(models, 5, 8) == 5
    assert threads.fit_to_cpu(models, 0, 8, measure=False) == 8
    assert chosen == [(["Q4_K", "Q8_0"], count) for count in (8, 6, 5, 8)]

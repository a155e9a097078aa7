"""Measured times are kept for this machine, build and number of threads, unless they were disturbed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from spac.model import kept_times
from spac.model.kept_times import KeptTimes, Key

KEPT = KeptTimes("-x", lambda times: times if isinstance(times, list) else None)


class Clock:
    """A measurement that ends at once and records the types that it was asked for."""

    def __init__(self, running: float = 1.0) -> None:
        self.asked: list[list[str]] = []
        self._running = running

    def __call__(self, types: list[str]) -> tuple[dict[str, Any], float]:
        self.asked.append(types)
        return {kind: [len(self.asked)] for kind in types}, self._running


def test_a_measurement_is_kept(cache: Path) -> None:
    clock = Clock()
    assert KEPT.measured(["a"], 1, clock) == {"a": [1]}
    assert KEPT.measured(["b", "a"], 1, clock) == {"b": [2], "a": [1]}
    assert KEPT.measured(["a"], 2, clock) == {"a": [3]}  # the kept time is for another number of threads
    assert clock.asked == [["a"], ["b"], ["a"]]
    assert KEPT.load(Key.of(1)) == {"a": [1], "b": [2]}
    assert len(list(cache.iterdir())) == 2
    assert all(file.name.endswith("-x.json") for file in cache.iterdir())


def test_a_disturbed_measurement_is_used_and_not_kept(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_times, "UNDISTURBED", 0.9)
    for running, kept in ((0.89, {}), (0.9, {"a": [1]})):
        assert KEPT.measured(["a"], 1, Clock(running)) == {"a": [1]}
        assert KEPT.load(Key.of(1)) == kept


@pytest.mark.parametrize("times", [None, 7, [], {"a": 7}])
@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"key": 1}', '{"key": KEY}', '{"key": KEY, "times": TIMES}']
)
def test_a_cache_that_cannot_be_used_is_measured_anew(cache: Path, text: str, times: object) -> None:
    key = Key.of(1)
    cache.mkdir(parents=True)
    KEPT.path(key).write_text(text.replace("KEY", json.dumps(vars(key))).replace("TIMES", json.dumps(times)))
    assert KEPT.load(key) == {}
    assert KEPT.measured(["a"], 1, Clock()) == {"a": [1]} == KEPT.load(key)


def test_a_cache_that_cannot_be_written_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert KEPT.measured(["a"], 1, Clock()) == {"a": [1]}

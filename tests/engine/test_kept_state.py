"""These tests cover `--state auto`: what the cache folder keeps, and what no fault of it may do."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from spac import env
from spac.config import EngineConfig, SamplingConfig
from spac.costs import store
from spac.engine import Engine
from spac.engine.run_files import WarmState, key_of
from spac.errors import InputError
from spac.scheduler import make
from tests.engine.test_state import STATE


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Return the folder of kept states, which belongs to the test alone."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv(env.STATE.name, "auto")
    return tmp_path / "spac" / "measured"


@pytest.fixture
def engine_with(tiny_model):
    def start(**options):
        sampling = SamplingConfig(temp=0.0, seed=1, ignore_eos=True)
        defaults = {"device": "simulated", "slots": 4, "scheduler": "lru", "threads": 1, "ctx": 128}
        return Engine(
            EngineConfig(target=tiny_model("qwen3moe"), sampling=sampling, **{**defaults, **options})
        )

    return start


def run(engine, n_tokens=6):
    """Generate, and return what the scheduler has learned, its plan and the notes."""
    with engine:
        "".join(engine.generate("x", n_tokens))
        driver = engine.events.driver
        return driver.scheduler.state(), driver.plan, list(engine.notes)


def kept(folder):
    return sorted(folder.glob("state-*"))


def test_the_second_run_begins_where_the_first_one_ended(engine_with, folder):
    learned, plan, notes = run(engine_with())
    (path,) = kept(folder)
    with engine_with() as engine:
        driver = engine.events.driver
        for name, array in driver.scheduler.state().items():
            np.testing.assert_array_equal(array, learned[name], strict=True)
        np.testing.assert_array_equal(driver.plan.priority, plan.priority)
        assert plan.wanted.any()
        assert not [note for note in (*notes, *engine.notes) if "state" in note]
    assert kept(folder) == [path]


def test_arrays_that_earlier_versions_kept_are_ignored(tmp_path):
    """Once, a state also had measured times of prompts."""
    path = tmp_path / "state.npz"
    STATE.save(path)
    with np.load(path) as found:
        arrays = dict(found)
    arrays["prompts.times"] = np.ones((2, 5))
    np.savez(path, **arrays)
    assert WarmState.load(path).learned.keys() == STATE.learned.keys()


def test_each_scheduler_and_device_has_its_own(engine_with, folder):
    run(engine_with())
    run(engine_with(scheduler="moe-spac"))
    run(engine_with(scheduler="moe-spac:levels=6"))
    assert len(kept(folder)) == 3
    with engine_with() as engine:
        assert engine.events.driver.plan.wanted.any()
        target = engine.config.target
    assert key_of(target, "CUDA0, a card", "lru", {}) != key_of(target, "CUDA1, a card", "lru", {})


@pytest.mark.parametrize(
    "off", [{"state": "off"}, {"state": None}, {"deterministic": True}, {"scheduler": make("lru")}]
)
def test_off_keeps_nothing(engine_with, folder, off):
    run(engine_with(**off))
    assert kept(folder) == []


def test_the_environment_switches_it_off(engine_with, folder, monkeypatch):
    monkeypatch.setenv(env.STATE.name, "off")
    run(engine_with())
    assert kept(folder) == []


def test_a_damaged_state_costs_a_note_and_is_replaced(engine_with, folder):
    run(engine_with())
    (path,) = kept(folder)
    whole = path.read_bytes()
    for data in (whole[: len(whole) // 2], b"GGUF", b"a note to myself"):
        path.write_bytes(data)
        _, _, notes = run(engine_with())
        (note,) = [note for note in notes if str(path) in note]
        assert "ignored, and replaced" in note
        assert "\n" not in note
        assert WarmState.load(path).scheduler == "lru"


def test_a_state_that_does_not_fit_costs_a_note(engine_with, folder):
    run(engine_with())
    (path,) = kept(folder)
    entry = store.read(path)
    store.write(path, *STATE.content, key=entry.key)
    _, _, notes = run(engine_with())
    assert [note for note in notes if "of another model" in note]
    assert WarmState.load(path).differences(STATE.facts | {"experts": 0, "expert_bytes": 0, "file": 0})


def test_a_folder_that_cannot_be_written_costs_a_note(engine_with, folder):
    folder.parent.mkdir(exist_ok=True)
    folder.write_text("a file")
    learned, _, notes = run(engine_with())
    assert learned
    (note,) = [note for note in notes if "scheduler learns is not kept" in note]
    assert str(folder) in note
    assert "\n" not in note


def test_a_folder_that_vanishes_costs_a_note_at_the_end(engine_with, folder):
    engine = engine_with()
    "".join(engine.generate("x", 2))
    shutil.rmtree(folder)
    folder.write_text("a file")
    engine.close()
    assert [note for note in engine._notes if "not kept for the next run" in note]


def test_a_target_that_is_gone_is_one_line(tmp_path):
    with pytest.raises(InputError, match="cannot be read"):
        key_of(tmp_path / "gone.gguf", "cpu", "lru", {})

"""Warm starts: what they restore and gain, which files they refuse, and what `--state auto` keeps."""

import io
import shutil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spac import demo, env
from spac.config import EngineConfig
from spac.engine import Engine
from spac.engine.run_files import WarmState, key_of
from spac.errors import InputError
from spac.machine.files import write_atomically
from spac.scheduler import Plan, make
from tests.engine.conftest import config

SCHEDULERS = ("lru", "ewma", "logistic", "moe-spac", "static")
PLAN = Plan(np.array([[3, 1], [0, 2]], np.int32), np.array([1, 2], np.int32))
STATE = WarmState({"layers": 2}, "lru", {}, {"used": np.arange(4).reshape(2, 2)}, PLAN)


def engine_on(path, scheduler="lru", **options):
    # `deterministic` makes the residency independent of how fast this machine copies.
    defaults = {"draft": demo.DRAFT, "draft_length": 4, "slots": 0.25, "deterministic": True}
    return Engine(config(scheduler=scheduler, state=path, **{**defaults, **options}))


def first_steps(engine, n_tokens=12):
    """Return the hit rate of the first tokens, after all copies are done."""
    engine.experts.settle(10)
    generation = engine.generate(demo.PROMPT, n_tokens)
    "".join(generation)
    return generation.stats.hit_rate


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_a_restart_is_warm(tmp_path, scheduler):
    path = tmp_path / "warm.state"
    with engine_on(path, scheduler) as engine:
        cold = first_steps(engine)
        "".join(engine.generate(demo.PROMPT, 40))
        learned, plan = engine.events.driver.scheduler.state(), engine.events.driver.plan
        assert engine.notes == []
    with engine_on(path, scheduler) as engine:
        driver = engine.events.driver
        learned = driver.scheduler.for_new_text(learned)
        assert driver.scheduler.state().keys() == learned.keys()
        for name, array in driver.scheduler.state().items():
            np.testing.assert_array_equal(array, learned[name], strict=True)
        np.testing.assert_array_equal(driver.plan.priority, plan.priority)
        np.testing.assert_array_equal(driver.plan.threshold, plan.threshold)
        assert engine.notes == []
        warm = first_steps(engine)
    if scheduler == "static":
        assert warm == cold
    else:
        assert warm > cold + 0.05


def test_no_file_and_an_empty_one_are_no_state(tmp_path):
    assert WarmState.load(tmp_path / "none") is None
    (tmp_path / "empty").touch()
    assert WarmState.load(tmp_path / "empty") is None


def archive(**arrays):
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def whole(tmp_path):
    STATE.save(tmp_path / "whole")
    return (tmp_path / "whole").read_bytes()


def pickled():
    file = io.BytesIO()
    np.savez(file, about=np.array([{"spac_state": 1}], dtype=object))
    return file.getvalue()


FOREIGN = {
    "text": b"this is a note to myself\n",
    "a model": b"GGUF" + bytes(100),
    "another archive": archive(weights=np.zeros(3)),
    "pickles": pickled(),
    "about is no JSON": archive(about=np.array("{")),
    "about is a list": archive(about=np.array("[1]")),
    "a bare format": archive(about=np.array('{"spac": 2}')),
    "format 3": archive(about=np.array('{"spac": 3, "key": null}')),
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_a_file_that_is_no_state_is_refused_in_one_line(tmp_path, kind):
    path = tmp_path / "odd.state"
    path.write_bytes(FOREIGN[kind])
    with pytest.raises(InputError, match="state") as error:
        WarmState.load(path)
    assert "\n" not in str(error.value)
    assert str(path) in str(error.value)
    assert kind != "format 3" or kind in str(error.value)


def test_every_truncation_is_refused(tmp_path):
    data, path = whole(tmp_path), tmp_path / "cut.state"
    for size in range(1, len(data), 19):
        path.write_bytes(data[:size])
        with pytest.raises(InputError):
            WarmState.load(path)


@given(st.data())
@settings(max_examples=30)
def test_damage_is_refused_or_harmless(tmp_path_factory, data):
    """A flipped byte is detected, or the archive does not need it (times, file attributes)."""
    folder = tmp_path_factory.mktemp("damage")
    original = bytearray(whole(folder))
    at = data.draw(st.integers(0, len(original) - 1))
    original[at] ^= data.draw(st.integers(1, 255))
    (folder / "damaged").write_bytes(bytes(original))
    try:
        loaded = WarmState.load(folder / "damaged")
    except InputError:
        return
    np.testing.assert_array_equal(loaded.plan.priority, PLAN.priority)
    assert loaded.scheduler == STATE.scheduler


def test_a_state_of_another_model_starts_cold_and_says_what_differs(tmp_path, tiny_model):
    path = tmp_path / "warm.state"
    with engine_on(path) as engine:
        first_steps(engine)
    with engine_on(path, target=tiny_model("qwen3moe"), draft=None, draft_length=None) as engine:
        (note,) = engine.notes
        assert "of another model" in note
        assert "the number of MoE layers" in note
        assert "starts cold" in note
        assert "\n" not in note
        assert engine.events.driver.plan.wanted.sum() == 0
        "".join(engine.generate("x", 4))
    with engine_on(path, target=tiny_model("qwen3moe"), draft=None, draft_length=None) as engine:
        assert engine.notes == []  # the state was replaced at the end


@pytest.mark.parametrize(
    ("first", "then", "said"),
    [("lru", "ewma", "scheduler 'lru', this is 'ewma'"),
     ("moe-spac:levels=6", "moe-spac", "levels=6, not its default options")],
)  # fmt: skip
def test_a_state_of_another_scheduler_starts_cold(tmp_path, first, then, said):
    path = tmp_path / "warm.state"
    with engine_on(path, first) as engine:
        first_steps(engine)
    with engine_on(path, then) as engine:
        (note,) = engine.notes
        assert said in note


def test_an_engine_that_generated_nothing_saves_nothing(tmp_path):
    path = tmp_path / "warm.state"
    with engine_on(path):
        pass
    assert not path.exists()


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "a"
    write_atomically(path, b"old")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(InputError, match="No space left"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert [file.name for file in tmp_path.iterdir()] == ["a"]


def test_a_place_that_cannot_be_written_is_refused_before_anything_is_loaded(tmp_path):
    with pytest.raises(InputError, match="cannot be written"):
        Engine(EngineConfig(target=tmp_path / "missing.gguf", state=tmp_path / "no" / "a.state"))


# These tests cover `--state auto`: what the cache folder keeps, and what no fault of it may do.


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Return the folder of kept states, which belongs to the test alone."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv(env.STATE.name, "auto")
    return tmp_path / "spac" / "measured"


@pytest.fixture
def engine_with(target):
    defaults = {"state": "auto", "slots": 4, "scheduler": "lru", "ctx": 128}
    return lambda **options: Engine(config(target, **{**defaults, **options}))


def run(engine):
    with engine:
        "".join(engine.generate("x", 6))
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


def test_each_scheduler_and_device_has_its_own(engine_with, folder):
    run(engine_with())
    run(engine_with(scheduler="moe-spac"))
    run(engine_with(scheduler="moe-spac:levels=6"))
    assert len(kept(folder)) == 3
    with engine_with() as engine:
        assert engine.events.driver.plan.wanted.any()
        target = engine.config.target
    assert key_of(target, "CUDA0, a card", "lru", {}, 3) != key_of(target, "CUDA1, a card", "lru", {}, 3)


@pytest.mark.parametrize(
    "off", [{"state": "off"}, {"state": None}, {"deterministic": True}, {"scheduler": make("lru")}]
)
def test_off_keeps_nothing(engine_with, folder, off):
    run(engine_with(**off))
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
        key_of(tmp_path / "gone.gguf", "cpu", "lru", {}, 3)

"""These tests cover warm starts: what they restore, what they gain, and which files they refuse."""

from __future__ import annotations

import io
import zipfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spac import demo
from spac.config import EngineConfig, SamplingConfig
from spac.engine import Engine
from spac.engine.run_files import WarmState
from spac.errors import InputError
from spac.machine.files import write_atomically
from spac.scheduler import Event, Plan, make
from tests.scheduler.views import make_view

SCHEDULERS = ("lru", "ewma", "logistic", "moe-spac", "moe-spac:speculative=off", "static")
PLAN = Plan(np.array([[3, 1], [0, 2]], np.int32), np.array([1, 2], np.int32))
STATE = WarmState({"layers": 2}, "lru", {}, {"used": np.arange(4).reshape(2, 2)}, PLAN)


def engine_on(path, scheduler="lru", **options):
    sampling = SamplingConfig(temp=0.0, seed=1, ignore_eos=True)
    defaults = {"target": demo.TARGET, "draft": demo.DRAFT, "draft_length": 4, "slots": 0.25, "threads": 1}
    # `deterministic` makes the residency independent of how fast this machine copies.
    defaults |= {
        "device": "simulated",
        "ctx": 512,
        "sampling": sampling,
        "state": path,
        "deterministic": True,
    }
    return Engine(EngineConfig(scheduler=scheduler, **{**defaults, **options}))


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


@pytest.mark.parametrize("scheduler", [name for name in SCHEDULERS if name != "static"])
def test_a_scheduler_goes_on_as_if_it_had_never_stopped(scheduler):
    """The plans after a restart equal those of a scheduler that ran through."""
    random = np.random.default_rng(0)
    demands = random.integers(0, 4, (12, 3, 5)) * random.integers(0, 2, (12, 3, 5))
    views = [make_view([5, 5, 5], [6], demand=demand, n_verified=5) for demand in demands]
    start = make_view([5, 5, 5], [6])
    through, before, after = make(scheduler), make(scheduler), make(scheduler)
    for each in (through, before, after):
        each.on(Event.START, start)
    for view in views[:6]:
        through.on(Event.VERIFY_END, view)
        before.on(Event.VERIFY_END, view)
    after.restore(before.state())
    for view in views[6:]:
        wanted, plan = through.on(Event.VERIFY_END, view), after.on(Event.VERIFY_END, view)
        np.testing.assert_array_equal(plan.priority, wanted.priority)
        np.testing.assert_array_equal(plan.threshold, wanted.threshold)


def test_what_is_saved_is_what_is_loaded(tmp_path):
    path = tmp_path / "a.state"
    STATE.save(path)
    loaded = WarmState.load(path)
    assert (loaded.facts, loaded.scheduler, loaded.options) == (STATE.facts, STATE.scheduler, STATE.options)
    np.testing.assert_array_equal(loaded.plan.priority, PLAN.priority)
    np.testing.assert_array_equal(loaded.plan.threshold, PLAN.threshold)
    np.testing.assert_array_equal(loaded.learned["used"], STATE.learned["used"], strict=True)
    assert [file.name for file in tmp_path.iterdir()] == ["a.state"], "something temporary was left behind"


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


FOREIGN = {
    "text": b"this is a note to myself\n",
    "a model": b"GGUF" + bytes(100),
    "a zip": None,
    "another archive": archive(weights=np.zeros(3)),
    "one array": None,
    "pickles": None,
    "about is no JSON": archive(about=np.array("{")),
    "about is a list": archive(about=np.array("[1]")),
    "about is a number": archive(about=np.array(3)),
    "a bare format": archive(about=np.array('{"spac": 2}')),
}


def foreign(kind):
    data = FOREIGN[kind]
    file = io.BytesIO()
    if kind == "a zip":
        with zipfile.ZipFile(file, "w") as other:
            other.writestr("hello.txt", "hello")
    elif kind == "one array":
        np.save(file, np.zeros(3))
    elif kind == "pickles":
        np.savez(file, about=np.array([{"spac_state": 1}], dtype=object))
    return data if data is not None else file.getvalue()


@pytest.mark.parametrize("kind", FOREIGN)
def test_a_file_that_is_no_state_is_refused_in_one_line(tmp_path, kind):
    path = tmp_path / "odd.state"
    path.write_bytes(foreign(kind))
    with pytest.raises(InputError, match="state") as error:
        WarmState.load(path)
    assert "\n" not in str(error.value)
    assert str(path) in str(error.value)


def test_a_later_format_is_refused_by_its_number(tmp_path):
    path = tmp_path / "later.state"
    path.write_bytes(archive(about=np.array('{"spac": 3, "key": null}')))
    with pytest.raises(InputError, match="format 3"):
        WarmState.load(path)


def test_every_truncation_is_refused(tmp_path):
    data, path = whole(tmp_path), tmp_path / "cut.state"
    for size in range(1, len(data), 7):
        path.write_bytes(data[:size])
        with pytest.raises(InputError):
            WarmState.load(path)


@given(st.data())
@settings(max_examples=60)
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
    ("scheduler", "said"),
    [("ewma", "scheduler 'lru', this is 'ewma'"), ("moe-spac", "scheduler 'lru'")],
)
def test_a_state_of_another_scheduler_starts_cold(tmp_path, scheduler, said):
    path = tmp_path / "warm.state"
    with engine_on(path) as engine:
        first_steps(engine)
    with engine_on(path, scheduler) as engine:
        (note,) = engine.notes
        assert said in note


def test_other_options_start_cold(tmp_path):
    path = tmp_path / "warm.state"
    with engine_on(path, "moe-spac:levels=6") as engine:
        first_steps(engine)
    with engine_on(path, "moe-spac") as engine:
        (note,) = engine.notes
        assert "levels=6, not its default options" in note


def test_an_engine_that_generated_nothing_saves_nothing(tmp_path):
    path = tmp_path / "warm.state"
    with engine_on(path):
        pass
    assert not path.exists()


def test_the_name_of_the_model_file_does_not_matter(tmp_path, tiny_model):
    model = tiny_model("qwen3moe")
    other = tmp_path / "renamed.gguf"
    other.symlink_to(model)
    path = tmp_path / "warm.state"
    with engine_on(path, target=model, draft=None, draft_length=None) as engine:
        "".join(engine.generate("x", 4))
    with engine_on(path, target=other, draft=None, draft_length=None) as engine:
        assert engine.notes == []


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

"""Memory that a device's kernels take beside llama.cpp's buffers is counted, expected, and made room for."""

import gc

import pytest

from spac import _core
from spac.engine import Engine
from spac.engine.memory_budget import Pressure
from spac.errors import OutOfMemoryError
from tests.engine.conftest import config, memory
from tests.engine.conftest import text_of as text

REHEARSES = "spac.engine.expert_cache.rehearses"
PROMPT = "def f(n):\n    return n + 1\n" * 12
SHARE = 10.0  # pools have so many times the largest tensor of a graph


def text_of(engine):
    return text(engine, PROMPT, 12)


@pytest.fixture
def engine_with(tiny_model):
    gc.collect()  # no engine of an earlier test may have a part of the card
    model = tiny_model("qwen3moe", n_expert=24, n_ff_exp=128)
    defaults = {"slots": 6, "scheduler": "lru", "ctx": 1024}
    return lambda **options: Engine(config(model, **{**defaults, **options}))


@pytest.fixture
def wanted(engine_with):
    with engine_with() as engine:
        return text_of(engine)


def test_a_rehearsal_takes_what_the_first_texts_would(engine_with, wanted, tiny_model, monkeypatch):
    """Nothing of it stays: not in the context, the statistics, the slots or the learned costs."""
    _core.set_simulated_device(kernel_share=1)
    options = {"draft": tiny_model("qwen3"), "draft_length": 3}
    with engine_with(**options) as engine:
        expected, stats, kernels = text_of(engine), dict(engine.experts.stats), memory().kernels
    monkeypatch.setattr(REHEARSES, lambda _pair: True)
    with engine_with(**options) as engine:
        assert engine.experts.slots.n_slots == 6
        assert engine.experts.stats["host_compute_ns"] < stats["host_compute_ns"] / 4
        assert sum(device.activations for device in engine.experts.devices) == 0
        before = memory()
        assert before.kernels >= kernels > 0
        assert text_of(engine) == expected == wanted
        after = memory()
        assert after.kernels == before.kernels
        assert before.free - after.free == after.used - before.used
    assert memory().kernels == 0


def test_slots_of_auto_leave_what_the_rehearsal_took(engine_with, monkeypatch, wanted):
    found = {}
    for share in (0, SHARE):
        for rehearses in (True, False):
            _core.set_simulated_device(memory_mb=12, kernel_share=share)
            monkeypatch.setattr(REHEARSES, lambda _pair, answer=rehearses: answer)
            with engine_with(slots="auto") as engine:
                found[share, rehearses] = engine.experts.slots.n_slots
                assert text_of(engine) == wanted
                n = engine.experts.slots.n_slots
                shrank = any("the device's kernels need" in note for note in engine.notes)
                assert shrank == (n < found[share, rehearses]) == (share > 0 and not rehearses)
    assert found[0, True] == found[0, False] == found[SHARE, False]
    assert 0 < found[SHARE, True] < found[0, True]


@pytest.mark.parametrize(("scheduler", "ahead"), [("logistic", True), ("static", False)])
def test_slots_give_memory_to_kernels_that_lack_it(engine_with, wanted, monkeypatch, scheduler, ahead):
    """The decode is repeated, and the text is that with enough memory."""
    monkeypatch.setenv("SPAC_FORM", "ahead" if ahead else "no-ahead")
    with engine_with(slots="100%", scheduler=scheduler) as engine:
        n_slots = engine.experts.slots.n_slots
        _core.set_simulated_device(memory_mb=(memory().used >> 20) + 1, kernel_share=SHARE)
        assert text_of(engine) == wanted
        fewer = engine.experts.slots.n_slots
        assert 0 <= fewer < n_slots
        notes = [note for note in engine.notes if "because the device's kernels need" in note]
        assert notes[0].split(",")[0].endswith(f"instead of {n_slots}")
        assert notes[-1].startswith(f"slots: {fewer} instead of")
        assert text_of(engine) == wanted
        assert engine.experts.slots.n_slots == fewer


def test_without_memory_for_kernels_a_request_fails_and_the_next_one_does_not(engine_with, wanted):
    with engine_with(slots=0, scheduler="none") as engine:
        _core.set_simulated_device(memory_mb=(memory().used >> 20) + 1, kernel_share=1000)
        with pytest.raises(OutOfMemoryError, match="out of memory; give a smaller --ubatch or fewer --slots"):
            text_of(engine)
        _core.set_simulated_device()
        assert text_of(engine) == wanted


def test_a_rehearsal_leaves_models_alone_that_get_no_slot(engine_with, wanted, monkeypatch):
    with engine_with(slots=0) as engine:
        used = memory().used
        assert engine.experts.slots.n_slots == 0
    monkeypatch.setattr(REHEARSES, lambda _pair: True)
    with engine_with(slots="auto", vram_limit=used + 4096) as engine:
        assert engine.experts.slots.n_slots == 0
        assert text_of(engine) == wanted
    with engine_with(slots="auto", ctx=2) as engine:
        assert text(engine, "a")


def test_a_rehearsal_without_memory_says_what_is_lacking(engine_with, monkeypatch):
    monkeypatch.setattr(REHEARSES, lambda _pair: True)
    _core.set_simulated_device(memory_mb=14, kernel_share=1000)
    remedy = r"the kernels of simulated need .* more than is free beside the models: give a smaller --ubatch"
    with pytest.raises(OutOfMemoryError, match=remedy):
        engine_with(slots="auto")
    assert memory().used == memory().kernels == 0


def test_large_graphs_leave_memory_to_the_pools_that_they_need(engine_with, monkeypatch):
    monkeypatch.setattr(REHEARSES, lambda _pair: True)
    sizes = []
    for share in (0, SHARE):
        _core.set_simulated_device(memory_mb=48, kernel_share=share)
        with engine_with(ctx=8192, batch=8192, stream_batch=64) as engine:
            graphs = engine.graphs.memory
            sizes.append(graphs.fits(256))
            graph = graphs.kernel_bytes["simulated"] * graphs._small
            assert graph == pytest.approx(memory().kernels)
            (device,) = (each for each in _core.devices() if each.name == "simulated")
            assert graphs.pools(device, 4 * graphs._small) == pytest.approx(3 * graph, abs=1)
            assert graphs.pools(device, graphs._small // 2) == 0
    assert graphs._small < sizes[1] < sizes[0]


def test_growing_pools_are_not_another_program():
    pressure = Pressure(spare=100, free=100, kernels=50)
    assert pressure.shrinks(20)
    assert pressure.comes_from_others(20, 50)
    assert not pressure.comes_from_others(20, 130)

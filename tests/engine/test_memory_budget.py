"""Slots shrink and grow while an engine generates. The texts stay the same, and the memory is given back."""

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spac import _core
from spac.engine import Engine
from spac.engine.loop_work import LoopWork
from spac.engine.memory_budget import GROW_S, LOOK_S, Pressure
from spac.errors import InputError
from tests.engine.conftest import config, memory

N_TOKENS = 12


@pytest.fixture
def engine_with(target):
    return lambda **options: Engine(config(target, **{"slots": 6, "scheduler": "lru", "ctx": 128, **options}))


def text_of(engine, change=lambda _: None):
    """Return a text. `change(i)` is called after its i-th step, in a callback of the loop."""
    steps = itertools.count()
    engine.events.after_step.append(lambda _step: change(next(steps)))
    try:
        return "".join(engine.generate("def f(", N_TOKENS))
    finally:
        engine.events.after_step.pop()


@pytest.mark.parametrize("scheduler", ["lru", "logistic", "moe-spac", "static"])
def test_slots_change_while_it_generates(engine_with, scheduler):
    with engine_with(scheduler=scheduler) as engine:
        wanted, fixed = text_of(engine), memory().used - engine.experts.slots.bytes
        sizes = {2: 15, 4: 1, 6: 0, 8: 9}

        def change(i):
            if i in sizes:
                engine.set_slots(sizes[i])
                assert engine.experts.slots.n_slots == sizes[i]

        assert text_of(engine, change) == wanted
        assert engine.experts.slots.n_slots == sizes[8]
        assert engine.experts.settle(10)
        assert engine.experts.slots.n_resident > 0
        assert text_of(engine) == wanted
        assert memory().used == fixed + engine.experts.slots.bytes
        engine.set_slots(0)
        assert memory().used == fixed
        engine.set_slots(sizes[8])
        assert text_of(engine) == wanted
        if scheduler != "moe-spac":  # Its thresholds follow measured times, and may exceed every priority.
            assert engine.events.driver.plan.wanted.sum() >= engine.experts.slots.n_resident


@given(sizes=st.lists(st.tuples(st.integers(0, N_TOKENS - 2), st.integers(0, 15)), max_size=6))
@settings(max_examples=8)
def test_any_schedule_of_sizes_leaves_the_text(drafting, sizes):
    engine, wanted, fixed = drafting
    last = None

    def change(i):
        nonlocal last
        for at, n in sizes:
            if at == i:
                engine.set_slots(n)
                last = n

    assert text_of(engine, change) == wanted
    if last is not None:
        assert engine.experts.slots.n_slots == last
    assert memory().used - engine.experts.slots.bytes == fixed


@pytest.fixture(scope="module")
def drafting(target, draft):
    """Return an engine, its text, and the bytes on the device beside slots."""
    _core.set_launch_ahead(True)
    try:
        options = {"draft": draft, "draft_length": 3, "slots": 6, "ctx": 128, "lookahead": 1}
        with Engine(config(target, **options)) as engine:
            yield engine, text_of(engine), memory().used - engine.experts.slots.bytes
    finally:
        _core.set_launch_ahead(None)


def test_a_limit_takes_slots_and_gives_them_back(engine_with):
    with engine_with(slots="auto", vram_limit=512 << 20) as engine:
        wanted = text_of(engine)
        n, slot_bytes = engine.experts.slots.n_slots, engine.experts.slots.bytes
        assert n == engine.n_experts
        fixed = memory().used - slot_bytes
        limit = int((fixed + slot_bytes / 2) / 0.95)
        engine.set_vram_limit(limit)
        few = engine.experts.slots.n_slots
        assert 0 < few < n
        assert memory().used <= limit
        assert engine.device.memory.limit == limit
        assert text_of(engine) == wanted
        with pytest.raises(InputError, match="weights, contexts and the rest") as refused:
            engine.set_vram_limit(fixed // 2)
        assert "\n" not in str(refused.value)
        assert (engine.experts.slots.n_slots, engine.device.memory.limit) == (few, limit)
        engine.set_vram_limit(None)
        engine.set_slots(1.0)
        assert engine.experts.slots.n_slots == n
        assert text_of(engine) == wanted


def test_a_device_that_refuses_gets_fewer(engine_with, monkeypatch):
    """Memory may be fragmented, or another program may take it between the count and the allocation."""
    with engine_with(slots=4) as engine:
        wanted = text_of(engine)
        engine.set_vram_limit(memory().used)
        with pytest.raises(InputError, match="15 do not fit"):
            engine.set_slots(15)
        assert engine.experts.slots.n_slots == 4
        with pytest.raises(InputError, match="must be 'auto'"):
            engine.set_slots("many")
        monkeypatch.setattr(engine._memory, "_fit", lambda _spare: 15)
        engine.set_slots(15)
        assert 0 < engine.experts.slots.n_slots < 15
        assert text_of(engine) == wanted


def test_slots_that_begin_at_none(engine_with):
    with engine_with(slots=0) as engine:
        wanted = text_of(engine)
        assert engine.events.driver is None
        engine.set_slots(8)
        assert text_of(engine) == wanted
        assert engine.experts.settle(10)
        assert engine.experts.slots.n_resident > 0


def test_another_thread_waits_for_the_end_of_a_step(engine_with):
    with engine_with() as engine:
        wanted = text_of(engine)
        stop, faults, done = threading.Event(), [], []

        def change():
            try:
                while not stop.is_set():
                    engine.set_slots(len(done) % 15)
                    done.append(engine._last_stats().generated_tokens)
            except BaseException as error:
                faults.append(error)

        other = threading.Thread(target=change)
        other.start()
        try:
            assert text_of(engine) == wanted
        finally:
            stop.set()
            other.join()
        assert faults == []
        assert {0, N_TOKENS} < set(done), "no change came while it generated"


def test_another_programs_memory(engine_with):
    """The simulated device's memory shrinks and grows, as if another program took it and gave it back."""
    _core.set_simulated_device(memory_mb=256)
    with engine_with(slots="auto") as engine:
        wanted = text_of(engine)
        n = engine.experts.slots.n_slots
        assert n == engine.n_experts
        budget, now = engine._memory, 1e9
        budget.look(now)
        assert engine.experts.slots.n_slots == n
        _core.set_simulated_device(memory_mb=memory().used >> 20)
        budget.look(now + LOOK_S / 2)
        assert engine.experts.slots.n_slots == n  # The device was asked a moment ago.
        budget.look(now + LOOK_S)
        few = engine.experts.slots.n_slots
        assert few < n
        assert f"slots: {few} instead of {n}, for another program left" in engine.notes[-1]
        assert text_of(engine) == wanted
        _core.set_simulated_device(memory_mb=256)
        for _ in range(2):
            budget.look(now := now + 2 * LOOK_S)
            assert engine.experts.slots.n_slots == few
        budget.look(now + GROW_S)
        assert engine.experts.slots.n_slots == n
        assert f"slots: {n} instead of {few}" in engine.notes[-1]
        assert text_of(engine) == wanted


@given(frees=st.lists(st.integers(0, 400), max_size=40))
def test_pressure_does_not_shrink_and_grow_in_turn(frees):
    """A decision to grow needs room at every look for some seconds."""
    pressure, room = Pressure(spare=100, free=400), []
    for now, free in enumerate(frees):
        room.append(free > 200)
        if pressure.grows(now, room[-1]):
            assert all(room[-int(GROW_S) - 1 :])
            assert len(room) > GROW_S
            assert not pressure.shrinks(free)


def test_a_fault_of_work_goes_to_its_thread():
    work = LoopWork()

    def fail():
        raise InputError("no")

    with ThreadPoolExecutor(1) as pool:
        with work.lock:
            failing = pool.submit(work.run, fail)
        with pytest.raises(InputError, match="no"):
            failing.result()
    assert work.run(lambda: 1) == 1

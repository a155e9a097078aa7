"""Several threads use one engine that runs one generation at a time, and one of them may close it."""

from __future__ import annotations

import gc
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from spac import demo
from spac.engine import Engine
from spac.errors import InputError
from tests.engine.test_several import config, texts
from tests.exact import PROMPTS


def test_texts_are_as_if_alone(alone: dict[str, str]) -> None:
    """The calls race for the one place."""
    prompts = PROMPTS * 4
    with Engine(config(draft=demo.DRAFT, draft_length=4)) as engine, ThreadPoolExecutor(8) as pool:
        got = list(pool.map(lambda prompt: "".join(engine.generate(prompt, 40)), prompts))
    assert got == [alone[prompt] for prompt in prompts]


@pytest.fixture(scope="module")
def alone() -> dict[str, str]:
    with Engine(config()) as engine:
        return {prompt: "".join(engine.generate(prompt, 40)) for prompt in PROMPTS}


def test_python_keeps_the_state_of_the_loops_thread() -> None:
    """Making it anew for each call of a listener costs more than most listeners."""
    kept, counts = threading.local(), []

    def count(*_: object) -> None:
        kept.n = getattr(kept, "n", 0) + 1
        counts.append(kept.n)

    with Engine(config()) as engine:
        engine.loop.on("step_end", count)
        "".join(engine.generate(PROMPTS[0], 8))
        "".join(engine.generate(PROMPTS[1], 8))
    assert len(counts) >= 16
    assert counts == list(range(1, len(counts) + 1))


@pytest.mark.parametrize(("parallel", "after"), [(1, 1), (3, 5)])
def test_closing_ends_the_generations_of_other_threads(parallel: int, after: int) -> None:
    engine = Engine(config(draft=demo.DRAFT, draft_length=4, parallel=parallel))
    begun, reasons = threading.Semaphore(0), []

    def generate() -> None:
        generation = engine.generate(PROMPTS[0], 900)
        for _ in generation:
            begun.release()
        reasons.append(generation.reason)

    thread = threading.Thread(target=generate)
    thread.start()
    for _ in range(after):
        begun.acquire()
    engine.close()
    thread.join()
    assert reasons == ["cancelled"]
    assert engine.experts is None
    engine.close()
    with pytest.raises(InputError, match="closed"):
        list(engine.generate(PROMPTS[0], 1))


def test_closing_waits_for_the_call_that_reads_a_prompt() -> None:
    engine = Engine(config())
    started, caught = threading.Event(), []

    def generate() -> None:
        generation = engine.generate([1] * 900, 4, progress=lambda _done, _total: started.set())
        list(generation)
        caught.append(generation.reason)

    thread = threading.Thread(target=generate)
    thread.start()
    started.wait()
    engine.close()
    thread.join()
    assert caught == ["cancelled"]


def test_closing_in_a_callback_is_refused() -> None:
    with Engine(config()) as engine:
        refused: list[str] = []

        def close(_step: object) -> None:
            try:
                engine.close()
            except InputError as error:
                refused.append(str(error))

        engine.events.after_step.append(close)
        assert "".join(engine.generate(PROMPTS[0], 4))
    assert "close it afterwards" in refused[0]


def test_a_thread_waits_until_a_generation_is_dropped(alone: dict[str, str]) -> None:
    with Engine(config(ctx=8192)) as engine:
        first = engine.generate(PROMPTS[0])  # It would run for longer than the test.
        next(first)
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(lambda: "".join(engine.generate(PROMPTS[1], 40)))
            time.sleep(0.2)
            assert not waiting.done()
            del first
            gc.collect()
            assert waiting.result(60) == alone[PROMPTS[1]]


def test_a_generation_that_nobody_reads_does_not_hold_up_others(alone: dict[str, str]) -> None:
    with Engine(config()) as engine:
        first = engine.generate(PROMPTS[0], 40)
        piece = next(first)
        assert texts(engine, [PROMPTS[1]], 40) == [alone[PROMPTS[1]]]
        assert piece + "".join(first) == alone[PROMPTS[0]]
        assert first.reason == "length"


def test_changes_between_steps_come_from_any_thread(alone: dict[str, str]) -> None:
    """The scheduler and the slots change while another thread generates; texts stay equal."""
    with Engine(config(slots=8, deterministic=False)) as engine:
        with ThreadPoolExecutor(1) as pool:
            reading = [pool.submit(lambda p=prompt: "".join(engine.generate(p, 40))) for prompt in PROMPTS]
            for name in ["lru", "logistic", "none"] * 4:
                engine.set_scheduler(name)
                engine.set_slots(8 if name == "lru" else 12)
        assert [each.result() for each in reading] == [alone[prompt] for prompt in PROMPTS]

"""Several generations at once, each read by its own thread. In a deterministic run, each is as if alone."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from spac import demo
from spac.config import EngineConfig, SamplingConfig
from spac.engine import Engine
from spac.engine.batch import Batch
from spac.engine.batched_sequence import AHEAD, BatchedSequence, MemberStep
from spac.errors import InputError
from spac.llama_cpp_python.llama import Llama
from tests.session.recurrent import write_lfm2

GREEDY = SamplingConfig(temp=0.0, ignore_eos=True)
PROMPTS = ["def fibonacci(n):", "The sea is", "import os\n", "class Tree:\n    def", "1, 2, 3,"]


def config(target: Path = demo.TARGET, **options: Any) -> EngineConfig:
    defaults: dict[str, Any] = {
        "device": "simulated", "threads": 1, "ctx": 1024, "state": "off", "sampling": GREEDY,
        "deterministic": True,
    }  # fmt: skip
    return EngineConfig(target=target, **{**defaults, **options})


def texts(engine: Engine, prompts: list[str], n: int, **options: Any) -> list[str]:
    """Return the texts that follow the prompts, which are generated at the same time."""

    def read(prompt: str) -> str:
        return "".join(engine.generate(prompt, n, **options))

    with ThreadPoolExecutor(len(prompts)) as pool:
        return list(pool.map(read, prompts))


@pytest.fixture(scope="module")
def alone() -> dict[str, str]:
    """Return the texts of an engine that runs one generation at a time."""
    with Engine(config(ctx=256)) as engine:
        return {prompt: "".join(engine.generate(prompt, 40)) for prompt in PROMPTS}


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine(config(draft=demo.DRAFT, draft_length=4, parallel=4)) as engine:
        yield engine


def test_each_text_is_the_one_it_has_alone(engine: Engine, alone: dict[str, str]) -> None:
    """There is one prompt more than places, so one of them waits."""
    assert texts(engine, PROMPTS, 40) == [alone[prompt] for prompt in PROMPTS]
    assert engine.batch is not None
    assert engine.steps.meter.step_tokens > engine.steps.meter.steps, "several tokens a step"


def test_a_scheduler_that_learns_and_a_governor(alone: dict[str, str]) -> None:
    """Times decide the draft lengths and the residency here, so texts may differ at near ties."""
    options = config(draft=demo.DRAFT, draft_max=4, parallel=3, deterministic=False, scheduler="ewma")
    with Engine(options) as engine:
        found = texts(engine, PROMPTS, 40)
        assert sum(text == alone[prompt] for text, prompt in zip(found, PROMPTS, strict=True)) >= 3
        assert all(found)
        assert engine.experts is not None
        assert engine.experts.slots.n_resident > 0


def test_static_batches(alone: dict[str, str]) -> None:
    with Engine(config(parallel=2, cont_batching=False)) as engine:
        assert texts(engine, PROMPTS, 40) == [alone[prompt] for prompt in PROMPTS]


def test_cancelling_one_touches_no_other(engine: Engine, alone: dict[str, str]) -> None:
    stopped = engine.generate(PROMPTS[0])
    next(stopped)
    others = [engine.generate(prompt, 40) for prompt in PROMPTS[1:3]]
    firsts = [next(each) for each in others]
    stopped.cancel()
    assert "".join(stopped) == ""
    assert stopped.reason == "cancelled"
    for prompt, first, rest in zip(PROMPTS[1:3], firsts, others, strict=True):
        assert first + "".join(rest) == alone[prompt]
        assert rest.stats.generated_tokens == 40


def test_one_who_stops_reading_holds_up_nobody(engine: Engine, alone: dict[str, str]) -> None:
    idle = [engine.generate(PROMPTS[0]) for _ in range(3)]
    for each in idle:
        next(each)
    assert "".join(engine.generate(PROMPTS[1], 40)) == alone[PROMPTS[1]]
    gc.disable()  # A generation that nobody holds leaves without a collection.
    try:
        del idle, each
        _wait_for(lambda: engine.batch is not None and engine.batch.n_running == 0)
    finally:
        gc.enable()


def test_a_cancelled_one_is_freed(engine: Engine) -> None:
    """The error that its reader got has frames that refer to the generation. Nothing keeps that error."""
    generation = engine.generate(PROMPTS[0])
    next(generation)
    generation._session.cancel()  # as if a thread cancelled while the reader waits
    "".join(generation)
    kept = weakref.ref(generation)
    del generation
    _wait_for(lambda: gc.collect() >= 0 and kept() is None)


def test_an_idle_one_ends_only_for_another(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spac.engine.batch.IDLE_S", 0.0)
    idle = [engine.generate(PROMPTS[0]) for _ in range(4)]
    for each in idle:
        next(each)
    _wait_for(lambda: engine.batch is not None and all(not each._session.wants_step for each in idle))
    assert all(not each._session.ended for each in idle), "nobody waits"
    assert "".join(engine.generate(PROMPTS[1], 4))
    [ended] = [each for each in idle if each._session.ended]
    with pytest.raises(InputError, match="not read for 0 seconds, and another one waited"):
        "".join(ended)
    for each in idle:
        each.cancel()


def test_a_place_is_free_once_the_tokens_are_made(engine: Engine) -> None:
    held = [engine.generate(PROMPTS[0], 2) for _ in range(4)]
    for each in held:
        next(each)
    assert "".join(engine.generate(PROMPTS[1], 4))
    assert all("".join(each) is not None and len(each.tokens) == 2 for each in held)


def test_none_starves(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Generations come faster than they end, and some are long. Each one joins in its turn, and all end."""
    batch, came, joined = engine.batch, [], []
    assert batch is not None
    enter, join = batch.enter, batch._join
    lock = threading.Lock()

    def entered(each: Any) -> None:
        with lock:
            came.append(each)
            enter(each)

    monkeypatch.setattr(batch, "enter", entered)
    monkeypatch.setattr(batch, "_join", lambda each: (joined.append(each), join(each)))
    with ThreadPoolExecutor(12) as pool:
        lengths = [60 if at % 8 == 0 else 3 for at in range(36)]
        found = pool.map(lambda at: len(list(engine.generate(PROMPTS[at % 5], lengths[at]))), range(36))
        assert all(found)
    assert len(joined) == 36
    assert joined == came


def _wait_for(condition: Callable[[], bool]) -> None:
    for _ in range(500):
        if condition():
            return
        threading.Event().wait(0.01)
    raise AssertionError("it did not come true")


def test_from_an_event_loop(engine: Engine, alone: dict[str, str]) -> None:
    async def read(prompt: str) -> str:
        return "".join([piece async for piece in engine.generate_async(prompt, 40)])

    async def read_all() -> list[str]:
        return await asyncio.gather(*map(read, PROMPTS))

    assert asyncio.run(read_all()) == [alone[prompt] for prompt in PROMPTS]


def test_each_has_its_own_sampling_and_end(engine: Engine, alone: dict[str, str]) -> None:
    def read(options: dict[str, Any]) -> tuple[str, str]:
        generation = engine.generate(PROMPTS[0], 40, **options)
        return "".join(generation), generation.reason

    whole = alone[PROMPTS[0]]
    stop = whole[10:14]
    asked: list[dict[str, Any]] = [
        {}, {"stop": [stop]}, {"sampling": SamplingConfig(temp=0.0, grammar='root ::= "yes"')},
        {"sampling": SamplingConfig(temp=1.5, seed=1)},
    ]  # fmt: skip
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(read, asked))
    assert found[0] == (whole, "length")
    assert found[1] == (whole[: whole.index(stop)], "stop")
    assert found[2] == ("yes", "stop")
    assert found[3][0] not in (whole, "")
    refused = engine.generate("x", 4, sampling=SamplingConfig(grammar="root ::= other"))
    with pytest.raises(InputError, match="the rule 'other' is not defined"):
        next(refused)


def test_a_full_context_ends_one(engine: Engine) -> None:
    assert engine.context == 256, "each of four has a part of 1024 tokens"
    generation = engine.generate(PROMPTS[0])
    "".join(generation)
    assert generation.ended_by_context
    with pytest.raises(InputError, match="raise --ctx"):
        engine.generate("x" * 3000)


def test_closing_ends_those_that_run_and_wait() -> None:
    engine = Engine(config(parallel=2))
    found = [engine.generate(prompt) for prompt in PROMPTS[:2]]
    for each in found:
        next(each)
    waiting = threading.Thread(target=lambda: "".join(engine.generate(PROMPTS[2])))
    waiting.start()
    _wait_for(lambda: engine.batch is not None and engine.batch.n_waiting == 1)
    batch = engine.batch
    engine.close()
    assert batch is not None
    batch.close()
    waiting.join(10)
    assert not waiting.is_alive()
    for each in found:
        "".join(each)
        assert each.reason == "cancelled"
    with pytest.raises(InputError):
        engine.generate("x", 1)


def test_a_program_ends_that_closes_nothing() -> None:
    """The thread of the batch is in the middle of a step, and a generation has more to come."""
    program = """
from spac import demo
from spac.config import EngineConfig, SamplingConfig
from spac.engine import Engine
sampling = SamplingConfig(temp=0.0, ignore_eos=True)
config = EngineConfig(target=demo.TARGET, device="simulated", threads=1, ctx=1024, state="off", parallel=2,
                      sampling=sampling)
engine = Engine(config)
generations = [engine.generate(prompt) for prompt in ("def f(n):", "import os")]
print(len([next(each) for each in generations]))
"""
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert (run.returncode, run.stdout, run.stderr) == (0, "2\n", "")


def test_what_needs_one_generation_at_a_time(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="mmproj: images need"):
        config(parallel=2, mmproj="any.gguf")
    assert config(parallel=2, draft_type="draft-mtp").draft_types == ()
    with pytest.raises(InputError, match="scheduler moe-speq needs the draft's routes"):
        Engine(config(draft=demo.TARGET, parallel=2, scheduler="moe-speq"))
    with pytest.raises(InputError, match="parallel must be from 1 to 64, or -1"):
        config(parallel=0)
    path = write_lfm2(tmp_path / "lfm2.gguf")
    with Engine(config(path, parallel=2, device="cpu", deterministic=False)) as engine:
        assert engine.batch is None
        assert "--parallel 2: not used, for lfm2.gguf keeps a state that cannot go back" in engine.notes


@pytest.mark.parametrize(
    ("options", "n"),
    [({}, 4), ({"ctx": 1300}, 2), ({"ctx": 512}, 1), ({"batch": 40, "draft": demo.DRAFT, "draft_max": 9}, 4),
     ({"batch": 40, "draft": demo.DRAFT, "draft_max": 12}, 3)],
)  # fmt: skip
def test_auto_is_as_many_as_the_context_allows(options: dict[str, Any], n: int) -> None:
    """A line tells of fewer than four. Every generation has the whole context while the others need none."""
    with Engine(config(**{"parallel": -1, "deterministic": False, "ctx": 2048, **options})) as engine:
        assert (engine.batch.n_sequences if engine.batch is not None else 1) == n
        assert engine.context >= options.get("ctx", 2048)
        notes = [note for note in engine.notes if "--parallel" in note]
        assert len(notes) == (n < 4)
        assert all(texts(engine, PROMPTS[: min(n, 2)], 8)), "the governor knows the number of places"


def test_auto_is_one_for_what_needs_it(tmp_path: Path) -> None:
    """An option that needs the context for one generation gets it, and a line says so."""
    for options, why in (
        ({"mmproj": "any.gguf"}, "images"), ({"deterministic": True}, "--deterministic"),
        ({"draft_type": "draft-mtp"}, "draft-mtp drafts for one"),
        ({"draft_type": "self"}, "self drafts for one"),
        ({"scheduler": "sp-moe", "draft": demo.DRAFT}, "scheduler sp-moe"),
    ):  # fmt: skip
        one = config(**{"parallel": -1, "deterministic": False, **options})
        assert one.n_parallel == 1
        assert one.needs_one.startswith(why)
    with Engine(config(parallel=-1)) as engine:
        assert engine.batch is None
        assert any(note.startswith("one generation at a time, for --deterministic") for note in engine.notes)
    path = write_lfm2(tmp_path / "lfm2.gguf")
    with closing(Llama(str(path), parallel=-1, n_ctx=2048, n_threads=1, verbose=False)) as llama:
        assert llama("a b", max_tokens=2)["usage"]["completion_tokens"] == 2
        assert (
            "one generation at a time, for lfm2.gguf keeps a state that cannot go back (--parallel)"
            in llama.notes
        )


def test_a_scheduler_sees_the_end_of_each_prompt(
    alone: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with Engine(config(parallel=2, scheduler="logistic", slots=8)) as engine:
        driver = engine.events.driver
        assert driver is not None
        seen: list[int] = []
        saw = driver.saw_prompt

        def note(text: int = 0) -> None:
            assert engine.experts is not None
            seen.append(engine.experts.routes().shape[1])
            saw(text)

        monkeypatch.setattr(driver, "saw_prompt", note)
        found = texts(engine, PROMPTS[:3], 20)
        assert all(alone[prompt].startswith(text) for prompt, text in zip(PROMPTS, found, strict=False))
        assert len(seen) == 3
        assert max(seen) <= 32


def test_an_answer_has_its_own_figures_of_experts() -> None:
    """The answers' activations add up to those of all, although they ran at the same time."""
    with Engine(config(parallel=3, scheduler="ewma", slots=16, ctx=1536)) as engine:
        made = [engine.generate(prompt, 30) for prompt in PROMPTS[:3]]
        with ThreadPoolExecutor(3) as pool:
            list(pool.map(lambda each: "".join(each), made))
        assert engine.experts is not None
        n_used = sum(layer.n_used for layer in engine.experts.layers)
        assert [each.stats.activations for each in made] == [30 * n_used] * 3
        rates = [each.stats.hit_rate for each in made]
        assert all(rate is not None and 0 < rate < 1 for rate in rates)
        assert engine.experts.stats["activations"] == 3 * 30 * n_used


def test_a_pause_for_the_reader_is_no_time_of_a_sequence(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step's time begins at the step before, or with its call if the reader was behind."""
    now = iter([10.0, 10.5, 30.0])
    monkeypatch.setattr("spac.engine.batched_sequence.perf_counter", lambda: next(now))
    sequence = BatchedSequence(cast(Batch, SimpleNamespace(lock=threading.RLock())), {})
    step = cast(MemberStep, SimpleNamespace(reason="", tokens=[1]))
    found = []
    for _ in range(3):
        found.append(sequence.seconds_of(0.25))
        sequence.take(step, None)
    assert AHEAD == 2
    assert found == [0.25, 0.5, 0.25]
    assert sequence.decode_s == sum(found)

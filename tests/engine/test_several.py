"""Several generations at once, each read by its own thread. Each is as if alone."""

from __future__ import annotations

import asyncio
import gc
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from spac import demo
from spac.config import EngineConfig, SamplingConfig
from spac.engine import Engine
from spac.errors import InputError
from spac.llama_cpp_python.llama import Llama
from tests import exact
from tests.engine.conftest import config as usual
from tests.exact import PROMPTS
from tests.session.recurrent import write_lfm2


def config(target: Path | None = None, **options: Any) -> EngineConfig:
    return usual(target or exact.target(), **{"ctx": 1024, **exact.CACHE, **options})


def texts(engine: Engine, prompts: Sequence[str], n: int, **options: Any) -> list[str]:

    def read(prompt: str) -> str:
        return "".join(engine.generate(prompt, n, **options))

    with ThreadPoolExecutor(len(prompts)) as pool:
        return list(pool.map(read, prompts))


@pytest.fixture(scope="module")
def alone():
    with Engine(config(ctx=256, deterministic=True)) as engine:
        return {prompt: "".join(engine.generate(prompt, 40)) for prompt in PROMPTS}


@pytest.fixture(scope="module")
def engine():
    with Engine(config(draft=demo.DRAFT, draft_length=4, parallel=4)) as engine:
        yield engine


def test_each_text_is_the_one_it_has_alone(engine, alone):
    """There is one prompt more than places, so one of them waits."""
    assert texts(engine, PROMPTS, 40) == [alone[prompt] for prompt in PROMPTS]
    assert engine.steps is not None
    assert engine.steps.meter.step_tokens > engine.steps.meter.steps, "several tokens a step"


def test_cancelling_one_touches_no_other(engine, alone):
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


def test_one_who_stops_reading_holds_up_nobody(engine, alone):
    idle = [engine.generate(PROMPTS[0]) for _ in range(3)]
    for each in idle:
        next(each)
    assert "".join(engine.generate(PROMPTS[1], 40)) == alone[PROMPTS[1]]
    gc.disable()  # A generation that nobody holds leaves without a collection.
    try:
        del idle, each
        _wait_for(lambda: n_running(engine) == 0)
    finally:
        gc.enable()


def test_a_place_is_free_once_the_tokens_are_made(engine):
    held = [engine.generate(PROMPTS[0], 2) for _ in range(4)]
    for each in held:
        next(each)
    assert "".join(engine.generate(PROMPTS[1], 4))
    assert all("".join(each) is not None and len(each.tokens) == 2 for each in held)


def n_running(engine: Engine) -> int:
    with closing(engine.loop.begin("slots", b"")) as answer:
        answer.run()
        return sum(each["is_processing"] for each in json.loads(answer.body))


def _wait_for(condition: Callable[[], bool]) -> None:
    for _ in range(500):
        if condition():
            return
        threading.Event().wait(0.01)
    raise AssertionError("it did not come true")


def test_from_an_event_loop(engine, alone):
    async def read(prompt: str) -> str:
        return "".join([piece async for piece in engine.generate_async(prompt, 40)])

    async def read_all() -> list[str]:
        return await asyncio.gather(*map(read, PROMPTS))

    assert asyncio.run(read_all()) == [alone[prompt] for prompt in PROMPTS]


def test_each_has_its_own_sampling_and_end(engine, alone):
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


def test_a_full_context_ends_one(engine):
    assert engine.context == 1024, "each may have all tokens while the others need none"
    generation = engine.generate(PROMPTS[0])
    "".join(generation)
    assert generation.ended_by_context
    with pytest.raises(InputError, match="raise --ctx"):
        engine.generate("x" * 3000)


def test_closing_ends_those_that_run_and_wait():
    engine = Engine(config(parallel=2))
    found = [engine.generate(prompt) for prompt in PROMPTS[:2]]
    for each in found:
        next(each)
    waiting = threading.Thread(target=lambda: "".join(engine.generate(PROMPTS[2])))
    waiting.start()
    _wait_for(lambda: len(engine._running) == 3)
    engine.close()
    waiting.join(10)
    assert not waiting.is_alive()
    for each in found:
        "".join(each)
        assert each.reason == "cancelled"
    with pytest.raises(InputError):
        engine.generate("x", 1)


def test_a_program_ends_that_closes_nothing():
    """The loop is in the middle of a step, and a generation has more to come."""
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


def test_what_needs_one_generation_at_a_time():
    with pytest.raises(InputError, match="one generation at a time has it"):
        Engine(config(parallel=2, deterministic=True))
    with pytest.raises(InputError, match="parallel must be from 1 to 64, or -1"):
        config(parallel=0)


def test_a_model_that_keeps_a_state_has_places(tmp_path):
    path = write_lfm2(tmp_path / "lfm2.gguf")
    options = {"device": "cpu", "draft_type": "ngram-simple"}
    with Engine(config(path, **options)) as engine:
        alone = ["".join(engine.generate(prompt, 20)) for prompt in PROMPTS]
    with Engine(config(path, parallel=3, **options)) as engine:
        assert texts(engine, PROMPTS, 20) == alone
        assert not any("--parallel" in note for note in engine.notes)


@pytest.mark.parametrize(
    ("options", "n"),
    [
        ({}, 4),
        ({"ctx": 1300}, 2),
        ({"ctx": 512}, 1),
        ({"batch": 40, "draft": demo.DRAFT, "draft_max": 12}, 3),
    ],
)
def test_auto_is_as_many_as_the_context_allows(options, n):
    """A line tells of fewer than four. Every generation has the whole context while the others need none."""
    with Engine(config(**{"parallel": -1, "ctx": 2048, **options})) as engine:
        assert engine.n_sequences == n
        assert engine.context >= options.get("ctx", 2048)
        notes = [note for note in engine.notes if "--parallel" in note]
        assert len(notes) == (n < 4)
        assert all(texts(engine, PROMPTS[: min(n, 2)], 8)), "the governor knows the number of places"


def test_auto_is_one_for_what_needs_it(tmp_path):
    """An option that needs the context for one generation gets it, and a line says so."""
    with Engine(config(parallel=-1, deterministic=True)) as engine:
        assert engine.n_sequences == 1
        assert any(note.startswith("one generation at a time, for --deterministic") for note in engine.notes)
    for options in ({"mmproj": "any.gguf"}, {"draft_type": "draft-mtp"}, {"scheduler": "sp-moe"}):
        assert config(parallel=-1, **options).n_parallel == 4
    path = write_lfm2(tmp_path / "lfm2.gguf")
    with closing(Llama(str(path), parallel=-1, n_ctx=2048, n_threads=1, verbose=False)) as llama:
        assert llama("a b", max_tokens=2)["usage"]["completion_tokens"] == 2
        assert llama.engine is not None
        assert llama.engine.n_sequences == 4


def test_a_scheduler_sees_the_end_of_each_prompt(alone, monkeypatch):
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
        assert 2 <= len(seen) <= 3, "two prompts may end in one batch"
        assert max(seen) <= 32


def test_an_answer_has_its_own_figures_of_experts():
    """The answers' activations add up to those of all, although they ran at the same time."""
    with Engine(config(parallel=3, scheduler="ewma", slots=16, ctx=1536)) as engine:
        made = [engine.generate(prompt, 30) for prompt in PROMPTS[:3]]
        with ThreadPoolExecutor(3) as pool:
            list(pool.map(lambda each: "".join(each), made))
        assert engine.experts is not None
        n_used = sum(layer.n_used for layer in engine.experts.layers)
        counts = [each.stats.activations for each in made]
        assert all(20 * n_used <= each <= 29 * n_used for each in counts), "not beside the end of a prompt"
        rates = [each.stats.hit_rate for each in made]
        assert all(rate is not None and 0 < rate < 1 for rate in rates)
        assert engine.experts.stats["activations"] == sum(counts)

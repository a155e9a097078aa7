"""Several engines and contexts in one process each give the text that they give alone. The others' work and
the order in which they end have no effect."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spac import _core
from spac.config import EngineConfig, SamplingConfig
from spac.engine import Engine
from spac.errors import InputError
from tests.serve.conftest import wait_until

N = 24
TEXT = "def fibonacci(n):"
TARGETS = {
    "a": ("qwen3moe", {"n_layer": 4, "n_expert": 7, "types": {"*_exps": "Q4_0"}}),
    "b": ("deepseek2", {"n_layer": 3, "n_expert": 5, "options": {"merged": 1}}),
    "c": ("gpt-oss", {"n_layer": 2, "n_expert": 9, "n_used": 3}),
}


@pytest.fixture
def simulated_device():
    """Yield a function that sets the simulated device until the test ends:
    `simulated_device(upload_gb_s=…)`."""
    yield _core.set_simulated_device
    _core.set_simulated_device()


def load(path: Path, draft: Path | None = None, **options: Any) -> Engine:
    # On some CPUs, llama.cpp rounds a batch and its tokens one by one differently. So draft lengths, which
    # otherwise depend on times, are fixed.
    fixed = {"device": "simulated", "threads": 1, "ctx": 256, "slots": 0.4, "flash_attn": "off"}
    values: dict[str, Any] = {**fixed, **({"draft_length": 2} if draft else {}), **options}
    sampling = SamplingConfig(temp=0.0, ignore_eos=True)
    return Engine(EngineConfig(target=path, draft=draft, sampling=sampling, **values))


def text_of(engine: Engine, n: int = N) -> str:
    return "".join(engine.generate(TEXT, n))


@pytest.fixture(scope="module")
def paths(tiny_model):
    made = {name: tiny_model(family, **sizes) for name, (family, sizes) in TARGETS.items()}
    made["draft"] = tiny_model("qwen3moe", n_layer=2, n_expert=6, seed=3)
    return made


@pytest.fixture(scope="module")
def alone(paths):
    """Return every target's text without other engines and without slots."""
    texts = {}
    for name in TARGETS:
        with load(paths[name], paths["draft"] if name == "a" else None, slots=0) as engine:
            texts[name] = text_of(engine)
    return texts


@pytest.mark.parametrize("order", ["abc", "bca", "cab"])
def test_side_by_side_and_freed_in_any_order(paths, alone, order):
    """Targets of different shapes are loaded and run at the same time. One has a draft with experts. When one
    is freed, the others go on."""

    def start(name: str) -> Engine:
        return load(paths[name], paths["draft"] if name == "a" else None)

    with ThreadPoolExecutor(3) as threads:
        engines = dict(zip(TARGETS, threads.map(start, TARGETS), strict=True))
        for ends in order:
            texts = dict(zip(engines, threads.map(text_of, engines.values()), strict=True))
            assert texts == {name: alone[name] for name in engines}
            engines.pop(ends).close()


def test_one_is_freed_while_another_generates(paths, alone):
    with load(paths["b"]) as stays, ThreadPoolExecutor(1) as threads:
        running = threads.submit(lambda: [text_of(stays) for _ in range(12)])
        while not running.done():
            with load(paths["c"], slots=0.8) as passing:
                assert text_of(passing, 4) == alone["c"][: len(text_of(passing, 4))]
        assert running.result() == [alone["b"]] * 12


@pytest.mark.parametrize("after_s", [0.0, 0.02, 0.1])
def test_cancel_from_another_thread(paths, alone, after_s):
    with load(paths["a"], paths["draft"], ctx=4096) as engine:
        generation = engine.generate(TEXT)
        timer = threading.Timer(after_s, generation.cancel)
        timer.start()
        text = "".join(generation)
        timer.join()
        assert generation.reason == "cancelled"
        shared = min(len(text), len(alone["a"]))
        assert text[:shared].startswith(alone["a"][: max(0, shared - 1)])  # the cut may be inside a character
        assert text_of(engine) == alone["a"]


def test_cancelling_one_does_not_stop_another(paths, alone):
    with load(paths["b"], ctx=4096) as one, load(paths["c"]) as other:
        generation = one.generate(TEXT)
        with ThreadPoolExecutor(1) as threads:
            endless = threads.submit(lambda: "".join(generation))
            assert text_of(other) == alone["c"]
            generation.cancel()
            endless.result(timeout=30)
        assert generation.reason == "cancelled"


def wanted(engine: Engine) -> None:
    """Submit a plan with every expert in it. Return when a slow device has copied few of them."""
    experts = engine.experts
    experts.submit(
        np.ones((experts.n_layer, experts.n_expert), np.int32), np.zeros(experts.n_layer, np.int32)
    )
    wait_until(lambda: experts.stats["uploads"] > 0)


def test_closed_while_a_copy_is_under_way(paths, alone, simulated_device):
    """Closing waits for the copies of one batch, but not for the plan."""
    for _ in range(3):
        engine = load(paths["a"], paths["draft"], slots=1.0)
        simulated_device(upload_gb_s=0.002)  # an expert takes about 10 ms
        wanted(engine)
        assert engine.experts.stats["uploads"] < engine.n_experts
        started = time.monotonic()
        engine.close()
        assert time.monotonic() - started < 5
        simulated_device()
    with load(paths["a"], paths["draft"]) as engine:
        assert text_of(engine) == alone["a"]


def test_slots_replaced_while_a_copy_is_under_way(paths, alone, simulated_device):
    with load(paths["a"], paths["draft"], slots=1.0) as engine:
        experts = engine.experts
        simulated_device(upload_gb_s=0.002)
        for n_slots in (9, 0, 20):
            wanted(engine)
            experts.attach_slots(n_slots)
            assert (experts.residency() >= 0).sum() == 0
            assert text_of(engine) == alone["a"]
        simulated_device()
        wanted(engine)
        assert experts.settle(20)
        assert text_of(engine) == alone["a"]


def test_loads_that_fail_while_another_generates(paths, alone, tiny_model):
    """The loads fail after both models were loaded."""
    unfit = tiny_model("qwen3", n_vocab=900)
    with load(paths["b"]) as engine, ThreadPoolExecutor(1) as threads:
        running = threads.submit(lambda: [text_of(engine) for _ in range(6)])
        while not running.done():
            with pytest.raises(InputError, match="vocabular"):
                load(paths["c"], unfit)
        assert running.result() == [alone["b"]] * 6

"""Computing threads outlive graphs, run where they should, and leave the application's threads alone."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from spac import Llama, _core
from spac.config import EngineConfig, SamplingConfig
from spac.engine import Engine
from spac.errors import InputError
from spac.model.pair import ModelPair
from tests.conftest import TinyModel
from tests.threads import n_threads

GREEDY = SamplingConfig(temp=0.0, ignore_eos=True)


def config(target: Path, **options: Any) -> EngineConfig:
    values: dict[str, Any] = {"device": "cpu", "ctx": 128, "threads": 2, "sampling": GREEDY, **options}
    return EngineConfig(target=target, **values)


def latest_thread() -> int:
    """Return the number of a thread that is made now. Linux counts up."""
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        os.write(write, str(os.getpid()).encode())
        os._exit(0)
    os.waitpid(child, 0)
    number = int(os.read(read, 32))
    os.close(read)
    os.close(write)
    return number


def threads_by_number() -> set[str]:
    return set(os.listdir("/proc/self/task"))


@pytest.fixture
def target(tiny_model: TinyModel) -> Path:
    return tiny_model("qwen3moe")


@pytest.fixture
def draft(tiny_model: TinyModel) -> Path:
    return tiny_model("qwen3moe", n_layer=2, n_expert=6, seed=3)


@pytest.mark.parametrize(
    "options",
    [{}, {"threads": 1, "threads_batch": 2}, {"device": "simulated", "gpu_layers": 1}],
    ids=["as many", "more for prompts", "layers on the CPU"],
)
def test_threads_stay(target: Path, draft: Path, options: dict[str, Any]) -> None:
    with Engine(config(target, draft=draft, **options)) as engine:
        "".join(engine.generate("x" * 20, 4))
        there = threads_by_number()
        for _ in range(20):  # some of these sets would show a thread that lives only within a graph
            seen = [threads_by_number() for _ in engine.generate("y" * 20, 8)]
            assert set.union(there, *seen) == there


def test_no_thread_is_made_while_decoding(target: Path, draft: Path) -> None:
    """Other programs make threads too, but not as many."""
    with Engine(config(target, draft=draft)) as engine:
        "".join(engine.generate("x", 4))
        made = []
        for _ in range(5):
            before = latest_thread()
            "".join(engine.generate("x", 60))
            made.append((latest_thread() - before) % 2**22 - 1)
        assert min(made) < 20  # one for each graph would be 60


def test_one_pool_for_both_and_none_left(target: Path, draft: Path) -> None:
    before = n_threads()
    with Engine(config(target, draft=draft, threads=2)) as engine:
        "".join(engine.generate("x", 4))
        assert n_threads() == before + 3  # the loop has two: one decodes, and one answers meanwhile
    assert n_threads() <= before


def test_everything_on_a_device_needs_none(target: Path) -> None:
    for device, has in (("simulated", False), ("cpu", True)):
        pair = ModelPair(config(target, device=device), None)
        assert (pair.pool is not None) == has
        pair.close()


@pytest.mark.parametrize("options", [{"device": "cpu"}, {"device": "cpu", "draft": True}])
def test_llama_has_one(target: Path, draft: Path, options: dict[str, Any]) -> None:
    own = {**options, "draft": draft} if "draft" in options else options
    before = n_threads()
    llm = Llama(str(target), n_ctx=128, n_threads=1, n_threads_batch=2, verbose=False, **own)
    with closing(llm):
        llm("x", max_tokens=4)
        there = threads_by_number()
        assert len(there) >= before + 1  # a device without layers may have threads too
        for _ in range(10):
            llm("y", max_tokens=8)
            assert threads_by_number() == there
    assert n_threads() <= before


@pytest.mark.parametrize("device", ["cpu", "simulated"])
@pytest.mark.parametrize("pins", [False, True])
def test_the_application_keeps_its_cpus(
    target: Path, draft: Path, device: str, pins: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = [min(os.sched_getaffinity(0))]
    monkeypatch.setattr("spac.model.thread_pool.placing", lambda *_: first if pins else [])
    own, others = os.sched_getaffinity(0), threads_by_number()
    try:
        with Engine(config(target, draft=draft, device=device)) as engine:
            for _ in engine.generate("x" * 10, 8):
                assert os.sched_getaffinity(0) == own
            made = [os.sched_getaffinity(int(each)) for each in threads_by_number() - others]
        assert os.sched_getaffinity(0) == own
        bound = [cpus for cpus in made if len(cpus) == 1]
        assert bool(bound) == (pins and len(own) > 1)
    finally:
        _core.set_placing([], False)


def test_a_pool_that_cannot_be() -> None:
    for n, poll in ((0, 1), (513, 1), (1, 101), (1, -1)):
        with pytest.raises(InputError, match="expected 1 to 512 threads"):
            _core.ThreadPool(n, poll)
    pool = _core.ThreadPool(2, 0)
    pool.close()
    pool.close()
    with pytest.raises(InputError, match="closed"):
        pool.attach(0)


def test_a_child_process_ends_without_the_threads() -> None:
    pool = _core.ThreadPool(2, 0)
    if (child := os.fork()) == 0:
        pool.close()
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    pool.close()

"""Computing threads outlive graphs, run where they should, and leave the application's threads alone."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from spac import _core
from spac.config import EngineConfig
from spac.engine import Engine
from spac.errors import InputError
from spac.model.pair import ModelPair
from tests.engine.conftest import config as usual
from tests.threads import n_threads


def config(target: Path, **options: Any) -> EngineConfig:
    return usual(target, **{"device": "cpu", "ctx": 128, "threads": 2, **options})


def threads_by_number() -> set[str]:
    return set(os.listdir("/proc/self/task"))


@pytest.fixture
def target(tiny_model):
    return tiny_model("qwen3moe")


@pytest.fixture
def draft(tiny_model):
    return tiny_model("qwen3moe", n_layer=2, n_expert=6, seed=3)


@pytest.mark.parametrize(
    "options",
    [{"threads": 1, "threads_batch": 2}, {"device": "simulated", "gpu_layers": 1}],
    ids=["more for prompts", "layers on the CPU"],
)
def test_threads_stay(target, draft, options):
    with Engine(config(target, draft=draft, **options)) as engine:
        "".join(engine.generate("x" * 20, 4))
        there = threads_by_number()
        for _ in range(10):  # some of these sets would show a thread that lives only within a graph
            seen = [threads_by_number() for _ in engine.generate("y" * 20, 8)]
            assert set.union(there, *seen) == there


def test_one_pool_for_both_and_none_left(target, draft):
    before = n_threads()
    with Engine(config(target, draft=draft, threads=2)) as engine:
        "".join(engine.generate("x", 4))
        assert n_threads() == before + 3  # the loop has two: one decodes, and one answers meanwhile
    assert n_threads() <= before


def test_everything_on_a_device_needs_none(target):
    for device, has in (("simulated", False), ("cpu", True)):
        pair = ModelPair(config(target, device=device), None)
        assert (pair.pool is not None) == has
        pair.close()


@pytest.mark.parametrize(("device", "pins"), [("cpu", True), ("simulated", False)])
def test_the_application_keeps_its_cpus(target, draft, device, pins, monkeypatch):
    first = [min(os.sched_getaffinity(0))]
    monkeypatch.setattr("spac.model.thread_pool.placing", lambda *_: first if pins else [])
    own, others = os.sched_getaffinity(0), threads_by_number()
    try:
        with Engine(config(target, draft=draft, device=device)) as engine:
            for _ in engine.generate("x" * 10, 3):
                assert os.sched_getaffinity(0) == own
            made = [os.sched_getaffinity(int(each)) for each in threads_by_number() - others]
        assert os.sched_getaffinity(0) == own
        bound = [cpus for cpus in made if len(cpus) == 1]
        assert bool(bound) == (pins and len(own) > 1)
    finally:
        _core.set_placing([])


def test_a_pool_that_cannot_be():
    for n, poll in ((0, 1), (513, 1), (1, 101), (1, -1)):
        with pytest.raises(InputError, match="expected 1 to 512 threads"):
            _core.ThreadPool(n, poll)
    pool = _core.ThreadPool(2, 0)
    pool.close()
    pool.close()
    with pytest.raises(InputError, match="closed"):
        pool.attach(0)


def test_a_child_process_ends_without_the_threads():
    pool = _core.ThreadPool(2, 0)
    if (child := os.fork()) == 0:
        pool.close()
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    pool.close()

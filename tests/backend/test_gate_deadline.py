"""A stream gate that is not reached gives one line and a failed graph. Later launches have the plain
order."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic

import numpy as np
import pytest

from spac import _core, demo, env
from spac.engine import Engine
from spac.errors import DeviceError
from spac.machine.arrays import Float32Array
from spac.model.c_api import Context, Model, take_notices
from tests.conftest import ROOT
from tests.decoding import CONTEXT, decode
from tests.engine.conftest import config, text_of

TIMEOUT = 0.4
PROMPT, TOKENS = [5, 9, 2, 40, 7], [11, 3, 100, 8]
LINE = re.compile(
    r"spac: launching ahead was switched off, and this graph fails: .* within 0\.4 s \(SPAC_GATE_TIMEOUT\); "
    r"layer \d, mark \d+, signalled \d+, opened \d+, [1-9]\d* jobs pending|"
    r"spac: launching ahead was switched off, and this graph fails: the thread that launches did not come "
    r"back within 0\.4 s \(SPAC_GATE_TIMEOUT\); layer \d, mark \d+, signalled \d+, opened \d+, 0 jobs pending"
)


@pytest.fixture(autouse=True)
def switches():
    yield
    _core.set_simulated_device()
    _core.set_launch_ahead(None)
    _core.set_gate_timeout(None)


@contextmanager
def contexts(path: Path, share: float, n: int, lookahead: int = 0) -> Iterator[list[Context]]:
    """Yield `n` contexts of one model, with this share of its experts on the simulated device."""
    with _core.LoadScope() as scope:
        model = Model(path, (_core.device_handle("simulated"),), {})
    experts = scope.experts
    assert experts is not None
    made = [Context(model, CONTEXT) for _ in range(n)]
    n_experts = sum(layer.n_expert for layer in experts.layers)
    experts.attach_slots(round(share * n_experts))
    shape = (experts.n_layer, experts.n_expert)
    order = np.random.default_rng(3).permutation(np.arange(np.prod(shape), dtype=np.int32))
    experts.submit(order.reshape(shape), np.zeros(shape[0], np.int32))
    assert experts.settle(30.0)
    experts.set_lookahead(lookahead)
    try:
        yield made
        for context in made:
            context.close()
    finally:
        model.close()


def decode_all(context: Context) -> list[Float32Array]:
    steps = [decode(context, PROMPT, 0)]
    return steps + [decode(context, [token], len(PROMPT) + i) for i, token in enumerate(TOKENS)]


def fails(context: Context, tokens: list[int], position: int) -> float:
    start = monotonic()
    with pytest.raises(AssertionError):
        decode(context, tokens, position)
    return monotonic() - start


@pytest.mark.parametrize(
    ("fault", "share", "lookahead"),
    [("no-signal", 0.0, 1), ("no-signal", 0.5, 0), ("slow-queue", 0.0, 0), ("slow-queue", 0.5, 1)],
)
def test_one_line_and_the_plain_order(tiny_model, caplog, fault, share, lookahead):
    with contexts(tiny_model("qwen3moe", n_layer=5), share, 3, lookahead) as (plain, stuck, other):
        expected = decode_all(plain)
        _core.set_launch_ahead(True)
        steps = [decode(stuck, PROMPT, 0)]
        with caplog.at_level(logging.WARNING, "spac.llama"):
            _core.set_gate_timeout(TIMEOUT)
            _core.set_simulated_device(fault=fault)
            assert TIMEOUT < fails(stuck, TOKENS[:1], len(PROMPT)) < 5 * TIMEOUT + 2
        lines = [record.getMessage() for record in caplog.records if "spac: " in record.getMessage()]
        assert len(lines) == 1
        assert LINE.fullmatch(lines[0])

        # The fault stays. Graphs without gates do not meet it, in this context and in another.
        steps += [decode(stuck, [token], len(PROMPT) + i) for i, token in enumerate(TOKENS)]
        assert np.array_equal(steps, expected)
        assert np.array_equal(decode_all(other), expected)

        # This context uses no more gates. Another one queues ahead again when that is switched on.
        _core.set_launch_ahead(True)
        decode(stuck, TOKENS[:1], len(PROMPT) + len(TOKENS))
        fails(other, TOKENS[:1], len(PROMPT) + len(TOKENS))


def hang(path: str) -> None:
    with contexts(Path(path), 0.5, 1) as (context,):
        _core.set_launch_ahead(True)
        decode(context, PROMPT, 0)
        _core.set_gate_timeout(TIMEOUT)
        _core.set_simulated_device(fault="dead")
        logging.basicConfig(stream=sys.stdout, level=logging.WARNING, format="%(message)s")
        assert fails(context, TOKENS[:1], len(PROMPT)) < 5 * TIMEOUT + 2
        assert fails(context, TOKENS[:1], len(PROMPT)) < TIMEOUT
    print("over")


def test_a_device_that_hangs_fails_every_graph_and_lets_the_process_end(tiny_model):
    code = f"from tests.backend.test_gate_deadline import hang; hang({str(tiny_model('qwen3moe'))!r})"
    paths = os.pathsep.join([str(ROOT), *sys.path])
    command = [sys.executable, "-c", code]
    done = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": paths}, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr[-2000:]
    first, second, third, last = (
        line for line in done.stdout.splitlines() if line.startswith("spac: ") or line == "over"
    )
    assert LINE.fullmatch(first)
    assert "did not finish what was queued within another 0.4 s" in second
    assert third == "spac: the device hangs since a gate's deadline passed"
    assert last == "over"


def test_an_engine_goes_on(monkeypatch):
    monkeypatch.setenv(env.FORM.name, "ahead")
    monkeypatch.setenv(env.GATE_TIMEOUT.name, "1.5")
    take_notices()  # remove the notices of other tests
    with Engine(config(draft=demo.DRAFT, slots="25%", scheduler="static")) as engine:
        expected = text_of(engine)
        _core.set_simulated_device(fault="no-signal")
        with pytest.raises(DeviceError):
            text_of(engine, "Once upon a time")
        assert text_of(engine) == expected
        assert sum("within 1.5 s (SPAC_GATE_TIMEOUT)" in note for note in engine.notes) == 1

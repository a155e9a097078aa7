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
from importlib.resources import files
from pathlib import Path
from time import monotonic

import numpy as np
import pytest

from spac import _core, env
from spac.config import EngineConfig, SamplingConfig
from spac.engine import Engine
from spac.errors import DeviceError
from spac.machine.arrays import Float32Array
from spac.model.c_api import Context, Model, take_notices
from tests.conftest import ROOT, TinyModel
from tests.decoding import CONTEXT, decode

TIMEOUT = 0.4
PROMPT, TOKENS = [5, 9, 2, 40, 7], [11, 3, 100, 8]
LINE = re.compile(
    r"spac: launching ahead was switched off, and this graph fails: .* within 0\.4 s \(SPAC_GATE_TIMEOUT\); "
    r"layer \d, mark \d+, signalled \d+, opened \d+, [1-9]\d* jobs pending|"
    r"spac: launching ahead was switched off, and this graph fails: the thread that launches did not come "
    r"back within 0\.4 s \(SPAC_GATE_TIMEOUT\); layer \d, mark \d+, signalled \d+, opened \d+, 0 jobs pending"
)


@pytest.fixture(autouse=True)
def switches() -> Iterator[None]:
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
    """Decode tokens, which has to fail. Return how many seconds that took."""
    start = monotonic()
    with pytest.raises(AssertionError):
        decode(context, tokens, position)
    return monotonic() - start


@pytest.mark.parametrize("lookahead", [0, 1])
@pytest.mark.parametrize("share", [0.0, 0.5])
@pytest.mark.parametrize("fault", ["no-signal", "slow-queue"])
def test_one_line_and_the_plain_order(
    tiny_model: TinyModel, caplog: pytest.LogCaptureFixture, fault: str, share: float, lookahead: int
) -> None:
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
    """Run the hanging device in the process of the next test."""
    with contexts(Path(path), 0.5, 1) as (context,):
        _core.set_launch_ahead(True)
        decode(context, PROMPT, 0)
        _core.set_gate_timeout(TIMEOUT)
        _core.set_simulated_device(fault="dead")
        logging.basicConfig(stream=sys.stdout, level=logging.WARNING, format="%(message)s")
        assert fails(context, TOKENS[:1], len(PROMPT)) < 5 * TIMEOUT + 2
        assert fails(context, TOKENS[:1], len(PROMPT)) < TIMEOUT
    print("over")


def test_a_device_that_hangs_fails_every_graph_and_lets_the_process_end(tiny_model: TinyModel) -> None:
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


def test_an_engine_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(env.FORM.name, "ahead")
    monkeypatch.setenv(env.GATE_TIMEOUT.name, "1.5")
    config = EngineConfig(
        target=str(files("spac.demo") / "target.gguf"),
        draft=str(files("spac.demo") / "draft.gguf"),
        device="simulated",
        threads=1,
        ctx=512,
        slots="25%",
        scheduler="static",
    )
    greedy = SamplingConfig(temp=0, ignore_eos=True)
    prompt = "Once upon a time there was a small fox who lived in the wood. "
    take_notices()  # remove the notices of other tests
    with Engine(config) as engine:
        expected = "".join(engine.generate(prompt, 20, sampling=greedy))
        _core.set_simulated_device(fault="no-signal")
        with pytest.raises(DeviceError):
            "".join(engine.generate(prompt + "He had", 20, sampling=greedy))
        assert "".join(engine.generate(prompt, 20, sampling=greedy)) == expected
        assert sum("within 1.5 s (SPAC_GATE_TIMEOUT)" in note for note in engine.notes) == 1

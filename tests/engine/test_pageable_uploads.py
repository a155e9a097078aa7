"""Experts of streamed prompts that are not pinned pass a ring that threads fill, and the text is the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from spac import _core, env
from spac.engine import Engine
from spac.model import pinning
from tests.engine.conftest import config, text_of
from tools.models import Shape, write_model

PROMPT = "def double(values):\n    return [2 * value for value in values]\n\n" * 3


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    """Return a model whose matrices of all experts have 8 MiB, two chunks of the ring."""
    shape = Shape(n_layer=3, n_embd=256, n_ff_exp=512, n_expert=32, n_used=4, types={"*_exps": "F16"})
    return write_model(tmp_path_factory.mktemp("uploads") / "model.gguf", "qwen3moe", shape)


@pytest.fixture(autouse=True)
def defaults(monkeypatch):
    for name in (env.FORM.name, env.PIN_LIMIT.name):
        monkeypatch.delenv(name, raising=False)
    yield
    _core.set_upload_threads(0)


def read(target: Path, n_threads: int = 0, slots: str | int = "40%") -> tuple[str, dict[str, int]]:
    """Return a text and the counters of its prompt. n_threads: -1 measures which number is best."""
    with Engine(config(target, stream_batch=16, scheduler="static", slots=slots)) as engine:
        assert engine.experts is not None
        assert engine.experts.settle(10)
        if n_threads:
            _core.set_upload_threads(n_threads)
        return "".join(engine.generate(PROMPT, 16)), engine.experts.stats


@pytest.fixture(scope="module")
def expected(target):
    text, stats = read(target)
    assert stats["stream_bytes"] > 0
    assert stats["stream_ring_bytes"] == 0  # the driver's own way, which nobody has to choose
    return text


@pytest.mark.parametrize("n_threads", [1, 2, 5])
@pytest.mark.parametrize("slots", [0, "40%"])
def test_all_uploads_pass_the_ring(target, expected, n_threads, slots, monkeypatch):
    """The device is slow and its copies are late, so a chunk that were filled too early would be noticed."""
    monkeypatch.setenv("SPAC_SIMULATED_DEVICE", "upload_gb_s=2,delay_us=200")
    text, stats = read(target, n_threads, slots)
    assert text == expected
    assert stats["stream_ring_bytes"] == stats["stream_bytes"] > 0


def test_pinned_experts_need_no_ring(target, expected, monkeypatch):
    monkeypatch.setattr(pinning, "SLICE", 1 << 20)
    monkeypatch.setenv("SPAC_SIMULATED_DEVICE", "pin_limit_mb=30")
    text, stats = read(target, 2)
    assert text == expected
    assert 0 < stats["stream_ring_bytes"] < stats["stream_bytes"]


@pytest.mark.parametrize("by", ["the setting", "the variable"])
def test_the_measured_way(target, expected, by, monkeypatch):
    """The trial copies real experts, so that a wrong copy would change the text whichever way wins."""
    if by == "the variable":
        monkeypatch.setenv(env.FORM.name, "upload-threads")
    text, stats = read(target, -1 if by == "the setting" else 0)
    assert text == expected
    assert stats["stream_ring_bytes"] in (0, stats["stream_bytes"])


@pytest.mark.parametrize("form", ["no-pinned", "no-pinned,upload-threads"])
def test_copies_beside_steps_pass_the_ring(target, monkeypatch, form):
    texts = []
    for used in ("", form):
        monkeypatch.setenv(env.FORM.name, used)
        with Engine(config(target, scheduler="lru", slots="40%")) as engine:
            assert engine.experts is not None
            texts.append(text_of(engine, PROMPT, 32))
            assert engine.experts.settle(10)  # On a busy machine, copies may come after the last step.
            assert engine.experts.stats["uploads"] > 0
            texts.append(text_of(engine, PROMPT, 32))
            assert sum(each.activations_hit for each in engine.experts.devices) > 0
    assert len(set(texts)) == 1

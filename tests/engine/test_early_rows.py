"""The CPU's threads read rows of experts while the device computes. Nothing but time can change."""

from __future__ import annotations

from typing import Any

import pytest

from spac import _core, demo, env
from spac.engine import Engine
from tests.engine.conftest import config
from tests.engine.test_lookahead import ROUTERS, same_everywhere
from tools.models import write_model

PROMPT = "Once upon a time there was a small fox who lived in the wood. "


@pytest.fixture(autouse=True)
def slow_device():
    _core.set_simulated_device(latency_us=1000)


def generate(n_tokens: int, **options: Any) -> tuple[str, dict[str, int], int]:
    """Return the text, the counters of early rows for it, and the bytes of an expert."""
    with Engine(config(**{"scheduler": "static", **options})) as engine:
        assert engine.experts is not None
        assert engine.experts.settle(30.0)
        before = engine.experts.stats
        text = "".join(engine.generate(PROMPT, n_tokens))
        stats = {
            name: n - before[name] for name, n in engine.experts.stats.items() if name.startswith("early")
        }
        return text, stats, engine.experts.layers[0].expert_bytes


@pytest.mark.parametrize("router", ["by the products", "an input of its own", "by groups, sigmoid and bias"])
def test_what_a_router_will_choose_is_read(router, tmp_path, monkeypatch):
    """Where all layers see the same, the input of the layer before says exactly what a layer will use."""
    family, shape = ROUTERS[router]
    path = write_model(tmp_path / "model.gguf", family, shape)
    same_everywhere(path)
    monkeypatch.setenv(env.FORM.name, "ahead,no-early-rows")
    # Two threads share a read. They take long on a busy machine, where each spins while the other waits.
    options = {"target": path, "slots": 0, "threads": 2 if router == "by the products" else 1}
    text, stats, _ = generate(9, **options)
    assert stats["early_bytes"] == stats["early"] == 0
    monkeypatch.setenv(env.FORM.name, "ahead,early-rows")
    again, stats, expert_bytes = generate(9, **options)
    assert again == text
    assert stats["early_right"] >= 0.97 * stats["early"]  # the copies of routers have 8 bits
    if family == "smallthinker":  # whose routers have an input of their own
        assert stats["early"] == 0
    else:
        assert stats["early"] > 12 * shape.n_used
        assert stats["early"] * expert_bytes / 2 < stats["early_bytes"] <= stats["early"] * expert_bytes


def test_texts_stay_the_same(monkeypatch):
    _core.set_simulated_device(latency_us=100)
    options = {"slots": "25%", "scheduler": "logistic", "draft": demo.DRAFT, "draft_length": 3}
    found = []
    for form, lookahead in (("ahead,no-early-rows", 0), ("ahead,early-rows", 0), ("ahead,early-rows", 3)):
        monkeypatch.setenv(env.FORM.name, form)
        text, stats, _ = generate(32, **options, lookahead=lookahead)
        found.append((text, stats["early_bytes"] > 0))
    assert [text for text, _ in found] == [found[0][0]] * 3
    assert [read for _, read in found] == [False, True, True]


def test_residents_are_not_read(target, monkeypatch):
    monkeypatch.setenv(env.FORM.name, "ahead,early-rows")
    assert generate(9, target=target, slots="100%")[1]["early_bytes"] == 0


def test_it_is_off_unless_named(target, monkeypatch):
    monkeypatch.setenv(env.FORM.name, "ahead")
    assert generate(9, target=target, slots=0)[1]["early_bytes"] == 0

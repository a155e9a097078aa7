"""The CPU's threads read rows of experts while the device computes. Nothing but time can change."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

import pytest

from spac import _core, env
from spac.config import EngineConfig, SamplingConfig
from spac.engine import Engine
from tests.engine.test_lookahead import ROOT, ROUTERS, same_everywhere
from tools.models import Shape, write_model

GREEDY = SamplingConfig(temp=0, ignore_eos=True)
PROMPT = "Once upon a time there was a small fox who lived in the wood. "
DEMO = files("spac.demo")


@pytest.fixture(autouse=True)
def simulated_settings():
    _core.set_simulated_device(latency_us=2000)
    yield
    _core.set_simulated_device()


def generate(n_tokens: int, **options: Any) -> tuple[str, dict[str, int], int]:
    """Return the text, the counters of early rows for it, and the bytes of an expert."""
    fixed = {"device": "simulated", "threads": 2, "ctx": 512, "scheduler": "static", "state": "off"}
    with Engine(EngineConfig(**(fixed | options))) as engine:
        assert engine.experts is not None
        assert engine.experts.settle(30.0)
        before = engine.experts.stats
        text = "".join(engine.generate(PROMPT, n_tokens, sampling=GREEDY))
        stats = {
            name: n - before[name] for name, n in engine.experts.stats.items() if name.startswith("early")
        }
        return text, stats, engine.experts.layers[0].expert_bytes


@pytest.mark.parametrize("router", ROUTERS)
def test_what_a_router_will_choose_is_read(
    router: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where all layers see the same, the input of the layer before says exactly what a layer will use."""
    family, shape = ROUTERS[router]
    path = write_model(tmp_path / "model.gguf", family, shape)
    same_everywhere(path, 4 if router == ROOT else None)
    monkeypatch.setenv(env.FORM.name, "ahead,no-early-rows")
    text, stats, _ = generate(17, target=path, slots=0)
    assert stats["early_bytes"] == stats["early"] == 0
    monkeypatch.setenv(env.FORM.name, "ahead,early-rows")
    again, stats, expert_bytes = generate(17, target=path, slots=0)
    assert again == text
    assert stats["early_right"] >= 0.97 * stats["early"]  # the copies of routers have 8 bits
    if family == "smallthinker":  # whose routers have an input of their own
        assert stats["early"] == 0
    else:
        assert stats["early"] > 12 * shape.n_used
        assert stats["early"] * expert_bytes / 2 < stats["early_bytes"] <= stats["early"] * expert_bytes


@pytest.mark.parametrize("draft", [False, True], ids=["one token", "several tokens"])
def test_texts_stay_the_same(draft: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    _core.set_simulated_device(latency_us=100)
    options = {"target": str(DEMO / "target.gguf"), "slots": "25%", "scheduler": "logistic"}
    if draft:
        options |= {"draft": str(DEMO / "draft.gguf"), "draft_length": 3}
    found = []
    for form in ("ahead,no-early-rows", "ahead,early-rows", "ahead,lookahead,early-rows"):
        monkeypatch.setenv(env.FORM.name, form)
        text, stats, _ = generate(48, **options)
        found.append((text, stats["early_bytes"] > 0))
    assert [text for text, _ in found] == [found[0][0]] * 3
    assert [read for _, read in found] == [False, True, True]


def test_residents_are_not_read(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(env.FORM.name, "ahead,early-rows")
    path = write_model(tmp_path / "model.gguf", "qwen3moe", Shape(n_layer=4, n_expert=8, n_used=2))
    assert generate(9, target=path, slots="100%")[1]["early_bytes"] == 0


def test_it_is_off_unless_named(tiny_model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(env.FORM.name, "ahead")
    assert generate(9, target=tiny_model("qwen3moe"), slots=0)[1]["early_bytes"] == 0

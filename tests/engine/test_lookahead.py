"""Looking ahead loads experts while a step runs. It loads those that later layers' routers would choose."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from gguf import GGUFReader

from spac import _core, demo
from spac.config import EngineConfig
from spac.engine import Engine
from spac.errors import InputError
from tests.engine.conftest import config
from tools.models import Shape, write_model

PROMPT = "Once upon a time there was a small fox who lived in the wood. "


def generate(n_tokens=60, **options):
    """Return text and statistics. The scheduler itself loads nothing after the first plan."""
    with Engine(config(**{"slots": "25%", "scheduler": "static", **options})) as engine:
        assert engine.experts is None or engine.experts.settle(30.0)
        generation = engine.generate(PROMPT, n_tokens)
        text = "".join(generation)
        counts = engine.experts.stats if engine.experts is not None else {}
        known = {name: counts.get(name, 0) for name in ("foreseen", "foreseen_right")}
        return text, SimpleNamespace(**vars(generation.stats), **known)


@pytest.mark.parametrize("ahead", [True, False], ids=["ahead", "not ahead"])
def test_what_is_foreseen_arrives_in_time_on_a_slow_device(ahead, monkeypatch):
    """Copies take no time, and a layer takes milliseconds, so every rightly foreseen expert is a hit."""
    monkeypatch.setenv("SPAC_FORM", "ahead" if ahead else "no-ahead")
    text, without = generate()
    _core.set_simulated_device(latency_us=200)
    again, foreseen = generate(lookahead=2)
    assert text == again
    assert without.uploads == without.foreseen == 0
    assert without.lookahead == 0
    assert foreseen.lookahead == 2
    assert foreseen.foreseen_right > 0.4 * foreseen.foreseen  # chance would give 4 of 32
    assert foreseen.uploads > 100
    assert foreseen.hit_rate > without.hit_rate + 0.05


SEVERAL = {"n_layer": 5, "n_expert": 16, "n_used": 3}
ROOT = "a bias behind the root of softplus"  # as in DeepSeek-V4
ROUTERS: dict[str, tuple[str, Shape]] = {
    "by the products": ("qwen3moe", Shape(**SEVERAL)),
    "an input of its own": ("smallthinker", Shape(**SEVERAL)),
    "a bias behind the sigmoid": ("glm4moe", Shape(**SEVERAL)),
    "a bias before the softmax": ("gpt-oss", Shape(**SEVERAL)),
    ROOT: ("deepseek2", Shape(**SEVERAL, options={"sigmoid": 1})),
    "by groups, softmax": ("deepseek2", Shape(**SEVERAL, n_group=4, n_group_used=2)),
    "by groups, sigmoid and bias": (
        "deepseek2",
        Shape(**SEVERAL, n_group=4, n_group_used=2, options={"sigmoid": 1}),
    ),
    "by one group of two": ("deepseek2", Shape(**SEVERAL, n_group=2, options={"merged": 1})),
}


def same_everywhere(path: Path, activation: int | None = None) -> None:
    """Change a model so that all its layers see the same: they add nothing, and their norms are alike.

    activation: another one for the routers, by llama.cpp's number.
    """
    reader = GGUFReader(path, "r+")
    if activation is not None:
        next(f for name, f in reader.fields.items() if name.endswith("expert_gating_func")).parts[-1][0] = (
            activation
        )
    for tensor in reader.tensors:
        if re.search(r"\.(attn_output|ffn_down\w*)\.", tensor.name):
            tensor.data[:] = 0
        elif re.search(r"\.(ffn_norm|post_attention_norm|attn_post_norm)\.", tensor.name):
            tensor.data[:] = 1


@pytest.mark.parametrize("router", ROUTERS)
def test_what_a_router_will_choose_is_known_where_its_input_is(router, tmp_path):
    family, shape = ROUTERS[router]
    path = write_model(tmp_path / "model.gguf", family, shape)
    same_everywhere(path, 4 if router == ROOT else None)
    _, stats = generate(24, target=path, lookahead=1)
    assert stats.foreseen > 150
    assert stats.foreseen_right == stats.foreseen


def test_a_layer_behind_the_last_is_never_foreseen():
    text, stats = generate(lookahead=64)
    assert text == generate()[0]
    assert stats.foreseen == stats.uploads == 0


@pytest.mark.parametrize(
    ("options", "on_gpu", "form", "layers"),
    [
        ({"scheduler": "logistic"}, False, "", 0),
        ({"scheduler": "logistic"}, True, "", 3),
        ({"scheduler": "logistic", "lookahead": 2}, True, "safe", 2),
        ({"scheduler": "logistic", "deterministic": True}, True, "", 0),
        ({"scheduler": "static", "lookahead": 2}, False, "", 2),
        ({"scheduler": "none", "lookahead": 2}, True, "", 0),
    ],
)
def test_who_looks_ahead_by_default(options, on_gpu, form, layers, monkeypatch):
    monkeypatch.setenv("SPAC_FORM", form)
    if on_gpu:
        monkeypatch.setattr(_core.DeviceInfo, "shares_host_cores", False, raising=False)
    stats = generate(8, **options)[1]
    assert stats.lookahead == layers
    assert (stats.foreseen > 0) == (layers > 0)


def test_with_a_draft_several_tokens_are_foreseen():
    draft = demo.DRAFT
    expected, _ = generate(draft=draft, draft_length=3, scheduler="logistic")
    _core.set_simulated_device(latency_us=300)
    text, stats = generate(draft=draft, draft_length=3, lookahead=1, scheduler="logistic")
    assert text == expected
    assert stats.foreseen > 4 * 4 * stats.steps  # 4 layers of 5, 4 experts a token, more than a token a step
    assert stats.foreseen_right > 0.4 * stats.foreseen


def test_what_depends_on_time_is_refused_where_nothing_may():
    with pytest.raises(InputError, match="lookahead loads while a step runs"):
        EngineConfig(target="x.gguf", lookahead=3, deterministic=True)

"""The parts of the measurement of a prediction layer as a sensor."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from bench.__main__ import main
from bench.mtp_sensor import Told, fitted, lifts, odds, probed, recall
from bench.schedulers.trace import Trace
from spac.replay import replay

RNG = np.random.default_rng(0)
ROUTES = np.sort(RNG.permuted(np.tile(np.arange(6), (80, 2, 1)), axis=2)[..., :2], axis=2).astype(np.int32)
USED = np.zeros((80, 2, 6), np.float32)
np.put_along_axis(USED, ROUTES, 1, -1)


def test_a_sign_that_tells_the_experts_lifts_them():
    signs = RNG.integers(0, 4, (80, 1))
    used = np.zeros((80, 1, 8), np.float32)
    used[np.arange(80), 0, signs[:, 0] * 2] = 1
    found = lifts(signs, used)
    assert not found[0].any(), "nothing was seen before"
    assert (found[40:].argmax(-1) == used[40:].argmax(-1)).all()


def test_the_fit_ignores_noise():
    signal = odds(np.where(USED > 0, 0.9, 0.1)) * (RNG.random(USED.shape) < 0.9)
    noise = RNG.standard_normal(USED.shape)
    found = fitted(np.stack([signal, noise]), USED, slice(40))
    assert recall(found[40:], USED[40:], 2) > 0.85
    assert recall(fitted(noise[None], USED, slice(40))[40:], USED[40:], 2) < 0.5
    assert recall(USED, USED, 2) == 1


def test_told_the_future_all_experts_are_hits():
    demand = Trace(ROUTES, np.array([80], np.int32), 6, 1).demand()
    assert replay(Told(USED, 0.1), demand, 4).hit_rate == 1
    assert replay(Told(USED, 0.1), demand, 4, max_uploads=1).hit_rate < 1
    assert replay(Told(1 - USED, 0.1), demand, 4).hit_rate < 0.5


def test_the_probe_finds_what_states_say():
    states = np.concatenate([USED.reshape(80, -1), RNG.standard_normal((80, 4))], 1).astype(np.float32)
    found = probed(states, USED, 40, 50)
    assert recall(found[50:], USED[50:], 2) > 0.9


def test_a_wrong_draft_lifts_the_wrong_experts():
    signs = np.arange(80)[:, None] % 2
    used = np.zeros((80, 1, 8), np.float32)
    used[np.arange(80), 0, signs[:, 0]] = 1
    found = lifts(signs, used, 1 - signs)
    assert (found[4:].argmax(-1) == 1 - signs[4:]).all()


def test_without_torch_or_a_split_model_there_is_one_line(tiny_model, monkeypatch, capsys):
    words = ["mtp_sensor", str(tiny_model("qwen3moe"))]
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "torch", None)
        assert main(words) == 2
    error = capsys.readouterr().err
    assert "pip install torch" in error
    assert error.count("\n") == 1
    pytest.importorskip("torch", reason="the model is computed with torch")
    assert main(words) == 2
    assert "is no split model: make one with" in capsys.readouterr().err

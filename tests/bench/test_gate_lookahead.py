"""Predicting experts from an earlier layer's input: what is counted, and a real model's routers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bench.gate_lookahead.__main__ import DEMO, judged, main
from bench.gate_lookahead.figures import Gates, demand_of, joined, told, top
from bench.gate_lookahead.hidden_states import Routers

RNG = np.random.default_rng(5)
N_TOKEN, N_LAYER, N_EXPERT, WIDTH = 400, 4, 16, 24
SHOW = """
import sys
from pathlib import Path
import numpy as np
from bench.gate_lookahead.hidden_states import Model, Routers
routers = Routers.read(Path(sys.argv[1]))
model = Model(Path(sys.argv[1]), routers, 256, 1)
both = list(model.generate("def add(a, b):", 12, 0.8, 1))
again = list(model.generate("def add(a, b):", 12, 0.8, 1))
model.close()
inputs, logits = (np.stack(each) for each in zip(*both))
assert np.array_equal(inputs, np.stack([each[0] for each in again]))
found = np.einsum("tle,lne->tln", inputs, routers.router)
print(inputs.shape, logits.shape, np.allclose(found, logits, atol=1e-4), logits.std() > 0.1)
"""


def drifting() -> tuple[Routers, np.ndarray, np.ndarray]:
    """A stream of states that every layer nudges, by an offset and at random, and routers with norms."""
    router = RNG.standard_normal((N_LAYER, N_EXPERT, WIDTH)).astype(np.float32)
    norm = RNG.uniform(0.3, 3.0, (N_LAYER, WIDTH)).astype(np.float32)
    nudges = 0.3 * RNG.standard_normal((N_TOKEN, N_LAYER, WIDTH)) + RNG.standard_normal((N_LAYER, WIDTH))
    states = RNG.standard_normal((N_TOKEN, 1, WIDTH)) + np.cumsum(nudges, 1)
    states /= np.sqrt((states**2).mean(-1, keepdims=True))
    inputs = (states * norm).astype(np.float32)
    return Routers((0, 1, 2, 3), router, norm, 4), inputs, np.einsum("tle,lne->tln", inputs, router)


def test_what_is_told_counts_residents_apart():
    predicted, used, resident = (np.zeros((1, 1, 8), np.bool_) for _ in range(3))
    predicted[0, 0, [0, 1, 2, 5]] = used[0, 0, [0, 1, 3, 4]] = resident[0, 0, [0, 3, 5, 7]] = True
    found = told(predicted, used, resident)
    assert (found.recall, found.precision) == (0.5, 0.5)
    assert (found.recall_absent, found.precision_absent) == (0.5, 0.5)  # 1 of 1, 4; 1 of 1, 2
    assert found.absent_wrong == 0.5  # 2, but not 5


def test_each_correction_tells_more():
    routers, inputs, logits = drifting()
    half = N_TOKEN // 2
    gates, used = Gates(routers, inputs, logits, slice(0, half)), top(logits, 4)
    recalls = []
    for name in ("raw", "folded", "shifted"):
        predicted = top(getattr(gates, name)(1), 4)
        recalls.append((predicted[half:] & used[half:, 1:]).sum() / used[half:, 1:].sum())
    assert recalls == sorted(recalls)
    assert recalls[0] > 4 / N_EXPERT
    assert recalls[2] > recalls[0] + 0.1


def test_a_fit_finds_a_linear_map():
    routers, inputs, _ = drifting()
    turn = np.linalg.qr(RNG.standard_normal((WIDTH, WIDTH)))[0].astype(np.float32)
    inputs[:, 1] = inputs[:, 0] @ turn
    logits = np.einsum("tle,lne->tln", inputs, routers.router)
    gates, used = Gates(routers, inputs, logits, slice(0, 300)), top(logits, 4)[300:, 1]
    shares = [
        (top(getattr(gates, name)(1), 4)[300:, 0] & used).sum() / used.sum() for name in ("raw", "fitted")
    ]
    assert shares[0] < 0.6
    assert shares[1] > 0.9


def test_steps_join_tokens():
    chosen = top(RNG.standard_normal((10, 2, N_EXPERT)), 3)
    demand = demand_of(chosen, 5, 3)
    assert demand.counts.sum() == chosen.sum()
    assert np.array_equal(demand.counts > 0, joined(chosen, 5))
    assert demand.routes is not None
    assert demand.routes.shape == (2, 2, 5, 3)
    assert chosen[7, 1, demand.routes[1, 1, 2]].all()


def test_judging_covers_every_distance():
    routers, inputs, logits = drifting()
    rows = judged(routers, inputs, logits, N_TOKEN // 2, "25%", 2)
    assert [distance for name, distance, _ in rows if name == "raw"] == [1, 2, 3]
    found = {(name, distance): each for name, distance, each in rows}
    assert found["raw", 1].recall > found["raw", 3].recall
    assert all(0 <= value <= 1 for each in found.values() for value in vars(each).values())


def test_a_models_routers_get_what_is_seen():
    """In a process of its own: a layer's logits are its router's product with its input."""
    command = [sys.executable, "-c", SHOW, str(DEMO / "target.gguf")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.split(")") == ["(12, 5, 256", " (12, 5, 32", " True True\n"], done.stderr


def test_bad_input_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["--prompts", str(tmp_path), "--target", str(DEMO / "draft.gguf")]) == 2
    assert "no routers" in capsys.readouterr().err
    (tmp_path / "one.jsonl").write_text(json.dumps({"turns": ["x"]}) + "\n")
    assert main(["--prompts", str(tmp_path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1

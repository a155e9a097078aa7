"""The benchmark of MoE-SpeQ writes its table of speeds, and its predicted windows tell the misses."""

from __future__ import annotations

import json
import re

import numpy as np

from bench.moe_speq import SYSTEMS, main
from spac.scheduler import Layer
from spac.scheduler.demand import Demand
from spac.scheduler.lookahead_buffer import predicted_uses


def test_predicted_windows_tell_the_misses_of_routes_that_history_cannot_know(tmp_path, capsys):
    """All tokens of a step use the same experts, and other ones than those of the step before."""
    rng = np.random.default_rng(1)
    one = np.argsort(rng.random((120, 2, 1, 24)), axis=-1)[..., :3]
    routes = np.repeat(one, 5, axis=2).astype(np.int32)
    routes[:, :, 3:] = np.argsort(rng.random((120, 2, 2, 24)), axis=-1)[..., :3]
    counts = np.stack([predicted_uses(each, 24) for each in routes])
    verified = np.full(120, 5, np.int32)
    layers = tuple(Layer(f"layer {i}", 24, 3, 1, 0) for i in range(2))
    Demand(layers, counts, verified, verified - 1, routes, routes[:, :, :-1]).save(tmp_path / "some.npz")
    assert main(["misses", str(tmp_path), "--slots", "10%", "--max-uploads", "0"]) == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")][2:]
    shares, windows = ([float(x) for x in re.findall(r"([\d.]+)%", row)] for row in rows)
    assert windows[1] < 0.7 * shares[1], "two tokens want what one wants"


def test_every_system_writes_one_text_at_both_memories(tmp_path, capsys):
    prompts, out = tmp_path / "prompts", tmp_path / "page.md"
    prompts.mkdir()
    (prompts / "code.jsonl").write_text(json.dumps({"turns": ["def f(x):\n    return"]}) + "\n")
    words = ["--prompts", str(prompts), "--sets", "code", "--slots", "17%", "--tokens", "8", "--repeat", "1"]
    assert main(["speed", *words, "--out", str(out)]) == 0
    page = out.read_text()
    assert page.split("\n", 1)[1].strip() == capsys.readouterr().out.strip()
    rows = [line.split(" | ") for line in page.splitlines() if line.startswith("| ")][2:]
    assert [row[0].removeprefix("| ") for row in rows] == list(SYSTEMS)
    slots = [int(row[1]) for row in rows]
    assert slots[1] > slots[0] == slots[2]


def test_a_folder_without_recordings_gets_one_line(tmp_path, capsys):
    assert main(["misses", str(tmp_path)]) == 2
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1
    assert "has no recordings" in said[0]

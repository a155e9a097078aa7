"""`python -m spac.profile` works as a user starts it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from spac.costs import Costs


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the cache folder of these tests."""
    return tmp_path_factory.mktemp("cache")


def profile(home: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "spac.profile", "--threads", "1", *map(str, arguments)],
        capture_output=True, text=True, timeout=120, cwd=home,
        env={**os.environ, "XDG_CACHE_HOME": str(home), "OMP_WAIT_POLICY": "passive"},
    )  # fmt: skip


def test_costs_are_measured_once_and_shown_again(home, tiny_model):
    models = ("--target", tiny_model("deepseek2"), "--draft", tiny_model("qwen3", n_layer=1))
    given = (*models, "--device", "simulated", "--draft-max", 3, "--ctx", 512)
    first = profile(home, *given, "--json")
    assert first.returncode == 0, first.stderr
    measured = json.loads(first.stdout)
    assert measured.pop("measured_now") is True
    assert measured["key"]["threads"] == 1
    costs = Costs.from_json(json.dumps({k: v for k, v in measured.items() if k != "key"}))
    assert len(costs.verify_s) == len(costs.dense_s) == 4
    for expert in costs.experts:
        assert expert.cpu_s(8, 4) > 0
        assert min(expert.cpu_pair_only_s, expert.upload_s, expert.upload_busy_s) > 0
    assert costs.draft(3) > costs.draft(1) > 0
    assert all(0 < dense <= verify for dense, verify in zip(costs.dense_s, costs.verify_s, strict=True))

    again = profile(home, *given, "--json", "--quiet")
    assert {**json.loads(again.stdout), "measured_now": None} == {**measured, "measured_now": None}
    assert again.stderr == ""
    table = profile(home, *given)
    assert "--refresh" in table.stderr
    for words in ("CPU, a distinct expert", "transfer while both compute", "4 tokens"):
        assert words in table.stdout


def test_a_model_without_a_draft_is_measured(home, tiny_model):
    done = profile(
        home, "--target", tiny_model("qwen3moe"), "--device", "simulated", "--draft-max", 1, "--json"
    )
    assert done.returncode == 0, done.stderr
    measured = json.loads(done.stdout)
    assert (measured["draft_base_s"], measured["draft_token_s"]) == (0, 0)
    assert len(measured["verify_s"]) == 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--target", "nowhere.gguf"), "no such file"),
        (("--draft", "draft.gguf"), "a draft without a target"),
        (("--draft-max", "ninety"), "must be a whole number"),
        (("--scheduler", "lru"), "unknown option '--scheduler'"),
        (("--device", "gpu7"), "unknown device"),
        (("--device", "cpu"), "nothing to measure"),
    ],
)
def test_what_cannot_be_measured_is_one_line(home, arguments, said):
    done = profile(home, *arguments, "--quiet")
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("spac profile: error: ")
    assert said in line


def test_fewer_layers_on_the_device_are_measured_anew(home, tiny_model):
    """Stored costs of the whole file may be of more pools than fewer layers have."""
    types = {"*": "Q8_0", "blk.0.ffn_*_exps": "F16", "blk.1.ffn_*_exps": "BF16"}
    given = ("--target", tiny_model("qwen3moe", types=types), "--device", "simulated", "--draft-max", 1)
    for layers, n_pools in (("all", 3), (2, 1)):
        done = profile(home, *given, "--ctx", 256, "--json", "-ngl", layers)
        assert done.returncode == 0, done.stderr
        measured = json.loads(done.stdout)
        assert measured["measured_now"] is True
        assert len(measured["experts"]) == n_pools

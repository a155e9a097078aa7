"""--state and --record leave files behind. If they cannot, one line says so."""

from __future__ import annotations

import json

import numpy as np
import pytest

from spac.errors import InputError
from spac.report.figures import read
from spac.scheduler.demand import Demand

GREEDY = ("--temp", 0, "-n", 8, "--device", "simulated", "--draft-length", 4, "--slots", "40%")


@pytest.fixture
def pair(target, draft):
    return ("-m", target, "-md", draft, "-p", "def f(", *GREEDY)


def test_a_warm_start(spac_run, pair, tmp_path):
    files = ("--state", "warm.state")
    assert spac_run(*pair, *files).code == 0
    assert not list(tmp_path.glob(".*"))
    assert spac_run(*pair, *files, "--scheduler", "ewma", "--quiet").code == 0
    third = spac_run(*pair, *files, "--scheduler", "lru")
    assert third.code == 0
    assert [line for line in third.err.splitlines() if "warm.state" in line] == [
        "spac: state warm.state: of scheduler 'ewma', this is 'lru'; starts cold, and replaces it at the end"
    ]


def test_a_recording_has_the_experts_of_every_token(spac_run, pair, tmp_path):
    stats = spac_run(*pair, "--record", "run.npz", "--stats", "json", "--quiet").stats
    demand = Demand.load(tmp_path / "run.npz")
    assert len(demand.counts) == stats["steps"]
    assert demand.accepted.sum() == stats["accepted_tokens"]
    kept = np.arange(demand.routes.shape[2]) <= demand.accepted[:, None]
    experts = demand.routes.transpose(0, 2, 1, 3)[kept]
    assert len(experts) == stats["steps"] + stats["accepted_tokens"]
    assert (experts >= 0).all()
    assert (np.diff(np.sort(experts, axis=2)) > 0).all()  # no expert twice
    assert all(layer.expert_bytes > 0 for layer in demand.layers)
    with np.load(tmp_path / "run.npz") as file:
        assert json.loads(file["report.json"])["stats"] == stats


def test_a_model_without_experts_has_no_demand(spac_run, draft, tmp_path):
    path = tmp_path / "run.npz"
    assert spac_run("-m", draft, "-p", "a", "-n", 4, "-q", "--record", path).code == 0
    assert read(str(path)).content["experts"] is None
    with pytest.raises(InputError, match=r"run\.npz is not a recording of demand"):
        Demand.load(path)


def test_words_of_state_are_no_files(spac_run, pair, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("SPAC_STATE", "auto")
    kept = tmp_path / "cache" / "spac" / "measured"
    assert spac_run(*pair, "--state", "off").code == 0
    assert not list(kept.glob("state-*"))
    for options in ((), ("--state", "auto")):
        assert spac_run(*pair, *options).code == 0
        assert len(list(kept.glob("state-*"))) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["cache"]


def test_without_slots_there_is_nothing_to_keep(spac_run, pair, tmp_path):
    outcome = spac_run(*pair, "--slots", 0, "--state", "warm.state")
    assert (outcome.code, "not used, for there are no slots" in outcome.err) == (0, True)
    assert not (tmp_path / "warm.state").exists()

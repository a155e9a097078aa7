"""--timeline, --state and --record leave files behind. If they cannot, one line says so."""

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


def test_a_timeline_and_a_warm_start(spac_run, pair, tmp_path):
    timeline, state = tmp_path / "run.json", tmp_path / "warm.state"
    files = ("--timeline", timeline, "--state", state, "--stats", "json")
    first = spac_run(*pair, *files)
    assert first.code == 0
    assert [file.name for file in tmp_path.iterdir() if file.name.startswith(".")] == []
    events = json.loads(timeline.read_text())["traceEvents"]
    stats = json.loads(first.err.splitlines()[-1])
    assert sum(event.get("cat") == "verify" for event in events) == stats["steps"]
    second = spac_run(*pair, *files, "--scheduler", "ewma", "--quiet")
    assert second.code == 0
    third = spac_run(*pair, *files, "--scheduler", "lru")
    assert third.code == 0
    notes = [line for line in third.err.splitlines() if "warm.state" in line]
    assert notes == [
        f"spac: state {state}: of scheduler 'ewma', this is 'lru'; starts cold, and replaces it at the end"
    ]


def test_a_recording_has_the_experts_of_every_token(spac_run, pair, tmp_path):
    outcome = spac_run(*pair, "--record", tmp_path / "run.npz", "--stats", "json", "--quiet")
    assert outcome.code == 0
    demand = Demand.load(tmp_path / "run.npz")
    stats = json.loads(outcome.err.splitlines()[-1])
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


def test_a_recording_has_its_suffix(spac_run, pair, tmp_path):
    outcome = spac_run(*pair, "-q", "--record", tmp_path / "run.json")
    assert outcome.code == 2
    assert "run.json: a recording is a .npz file" in outcome.error
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("option", ["--timeline", "--state", "--record"])
def test_a_file_that_cannot_be_written(spac_run, pair, tmp_path, option):
    outcome = spac_run(*pair, "-q", option, tmp_path / "no" / "file.npz")
    assert outcome.code == 2
    assert "no/file.npz: cannot be written" in outcome.error
    assert outcome.out == ""


def test_a_file_that_is_no_state(spac_run, pair, tmp_path):
    (tmp_path / "notes.txt").write_text("what I did in my holidays")
    outcome = spac_run(*pair, "-q", "--state", tmp_path / "notes.txt")
    assert outcome.code == 2
    assert "not a saved state" in outcome.error
    assert (tmp_path / "notes.txt").read_text() == "what I did in my holidays"


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
    outcome = spac_run(*pair, "--slots", 0, "--state", tmp_path / "warm.state")
    assert outcome.code == 0
    assert "not used, for there are no slots" in outcome.err
    assert not (tmp_path / "warm.state").exists()

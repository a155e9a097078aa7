"""A recording agrees with its run."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest

import spac.stats.recording
from spac import demo
from spac.config import EngineConfig, SamplingConfig
from spac.engine import Engine
from spac.report.reading import parse
from spac.scheduler.options import MoeSpacOptions
from spac.stats.recording import COUNTERS, Recorder
from tests.report.conftest import TIMEOUT_S
from tests.report.conftest import spac as run_spac

GREEDY = SamplingConfig(temp=0)


@pytest.fixture(scope="module")
def engine():
    config = EngineConfig(
        target=demo.TARGET, draft=demo.DRAFT, device="simulated", threads=1, scheduler="lru", sampling=GREEDY
    )
    with Engine(config) as engine:
        yield engine


def recording_of(generation, recorder):
    return parse(json.dumps(recorder.recording(generation.stats)).encode(), "test")


def test_sums_are_the_statistics(recorded, content):
    stats = json.loads((recorded.parent / "stats.json").read_text())
    assert content["stats"] == stats
    recording = parse(recorded.read_bytes(), "test")
    total = recording.total
    assert total("steps") == stats["steps"] == sum(content["lengths"]["steps"])
    assert total("drafted") == stats["drafted_tokens"]
    assert total("accepted") == stats["accepted_tokens"]
    assert total("tokens") == sum(content["lengths"]["tokens"]) >= stats["generated_tokens"]
    for name in ("activations", "uploads", "evictions", "host_waits"):
        assert total(name) == stats[name]
    assert total("activations_hit") / total("activations") == pytest.approx(stats["hit_rate"])
    assert total("upload_bytes") == stats["bytes_moved"]["uploads"]
    assert total("scheduler_ns") / 1e9 == pytest.approx(stats["scheduler_s"], rel=1e-3)
    assert total("time_ns") / 1e9 == pytest.approx(stats["decode_s"], rel=1e-3)
    assert sum(content["lengths"]["time_ns"]) == pytest.approx(total("time_ns"), rel=1e-4)
    assert total("time_ns") > total("verify_ns") > total("host_wait_ns") + total("host_compute_ns")
    assert 0 < total("device_ns") < total("time_ns")
    assert content["device"] == "measured"


def test_matrices_and_layers_agree_with_the_sums(recorded, content):
    recording = parse(recorded.read_bytes(), "test")
    demand, resident, arrivals = (recording.matrices[name] for name in ("demand", "resident", "arrivals"))
    assert demand.shape == (5, 32)
    assert demand.sum() == recording.total("activations")
    looks = content["experts"]["looks"]
    assert looks == recording.total("steps")
    assert resident.max() <= looks
    assert 0 < resident.sum() <= looks * content["stats"]["slots"]
    assert 0 < arrivals.sum() <= recording.total("uploads")
    assert (resident[arrivals > 0] > 0).all()
    by_layer = content["experts"]["by_layer"]
    pairs = np.add(by_layer["host_activations"], by_layer["device_activations"])
    assert pairs.tolist() == demand.sum(1).tolist()
    assert sum(by_layer["wait_ns"]) == pytest.approx(recording.total("host_wait_ns"), rel=1e-3)


def test_thresholds_and_the_governors_model(content):
    thresholds, governor, n_step = content["thresholds"], content["governor"], content["stats"]["steps"]
    levels = MoeSpacOptions().levels
    assert thresholds["levels"] == levels
    assert sum(thresholds["steps"]) == n_step
    for steps, sums in zip(thresholds["steps"], thresholds["sums"], strict=True):
        assert all(steps <= each <= (levels + 1) * steps for each in sums)
    assert governor["name"] == content["stats"]["governor"] == "roofline"
    assert len(governor["curve"]["theta"]) == content["stats"]["draft_length"] + 1
    assert 0 < sum(governor["steps"]) <= n_step
    shown = np.divide(governor["curve"]["tokens"], governor["curve"]["cycle_s"])
    assert governor["curve"]["theta"] == pytest.approx(shown.tolist(), rel=1e-4)


def test_demand_is_that_of_every_step(engine):
    seen = []
    generation = engine.generate(demo.PROMPT, 40, recorder=(recorder := Recorder()))
    next(generation)
    engine.session.on("verify_end", lambda step: seen.append(step.demand.copy()))
    first = recorder._demand.copy()
    "".join(generation)
    engine.events.subscribe(engine.session)
    assert (recording_of(generation, recorder).matrices["demand"] == first + np.sum(seen, 0)).all()


def test_recording_changes_no_text_and_leaves_no_trace_on(engine):
    plain = "".join(engine.generate(demo.PROMPT, 30))
    assert "".join(engine.generate(demo.PROMPT, 30, recorder=Recorder())) == plain
    assert not engine.experts.trace.on


def test_a_long_run_is_thinned_and_sums_stay(engine, monkeypatch):
    monkeypatch.setattr(spac.stats.recording, "STEP_ROWS", 8)
    generation = engine.generate(demo.PROMPT, 60, recorder=(recorder := Recorder()))
    "".join(generation)
    recording, stats = recording_of(generation, recorder), generation.stats
    steps = recording.content["steps"]
    assert stats.steps > 8 >= len(steps["columns"]["steps"])
    assert steps["per_row"] > 1
    for name, value in (
        ("steps", stats.steps),
        ("drafted", stats.drafted_tokens),
        ("uploads", stats.uploads),
    ):
        assert recording.total(name) == value
    assert recording.total("device_ns") > 0


def test_a_generation_that_nobody_read_to_its_end(engine):
    generation = engine.generate(demo.PROMPT, 60, recorder=(recorder := Recorder()))
    next(generation)
    recording = recording_of(generation, recorder)
    assert recording.total("steps") == generation.stats.steps
    assert generation.stats.reason == ""
    assert engine.experts.trace.on
    generation.retire()
    assert not engine.experts.trace.on


def test_another_recorder_of_spans_keeps_them(engine):
    trace = engine.experts.trace
    trace.start(1 << 16)
    try:
        generation = engine.generate(demo.PROMPT, 10, recorder=(recorder := Recorder()))
        "".join(generation)
        assert trace.on
        assert len(trace.take()) > 0
        content = recording_of(generation, recorder).content
        assert content["device"] is None
        assert sum(content["steps"]["columns"]["device_ns"]) == 0
    finally:
        trace.stop()


def test_without_the_split_there_are_steps_and_no_experts(tmp_path):
    done = run_spac(
        "run", "--device", "cpu", "--threads", 1, "-n", 5, "--record", "cpu.json", "-q", cwd=tmp_path
    )
    assert done.code == 0, done.err
    content = json.loads((tmp_path / "cpu.json").read_text())
    assert content["experts"] is content["thresholds"] is content["device"] is None
    assert sum(content["steps"]["columns"]["tokens"]) >= 5
    assert all(sum(content["steps"]["columns"][name]) == 0 for name in COUNTERS)


def test_ctrl_c_leaves_a_whole_recording(tmp_path):
    path = tmp_path / "run.json"
    command = ["-m", "spac.run", "--device", "simulated", "--threads", "1", "-n", "-1", "--ignore-eos", "-q"]
    process = subprocess.Popen(
        [sys.executable, *command, "--record", str(path)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, cwd=tmp_path,
    )  # fmt: skip
    watchdog = threading.Timer(TIMEOUT_S, process.kill)
    watchdog.start()
    process.stdout.read(400)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate()
    watchdog.cancel()
    assert process.returncode == 130, err
    content = parse(path.read_bytes(), "test").content
    assert content["stats"]["reason"] == "cancelled"
    assert sum(content["steps"]["columns"]["steps"]) == content["stats"]["steps"] > 0
    assert [each.name for each in tmp_path.iterdir()] == ["run.json"]


def test_a_file_that_cannot_be_written_is_said_at_once(tmp_path):
    done = run_spac("run", "--record", tmp_path / "no" / "run.json", "-n", 2, "-q", cwd=tmp_path)
    assert done.code == 2
    assert done.out == b""
    assert len(done.err.splitlines()) == 1
    assert "no/run.json" in done.err


def test_a_run_that_cannot_start_leaves_the_earlier_recording(tmp_path):
    path = tmp_path / "run.json"
    path.write_text("earlier")
    done = run_spac("run", "--record", path, "-m", tmp_path / "missing.gguf", "-p", "x", "-q", cwd=tmp_path)
    assert done.code == 2
    assert path.read_text() == "earlier"

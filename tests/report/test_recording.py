"""A recording agrees with its run. A file that is none, or is damaged, is refused in one line."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
import zipfile
from dataclasses import asdict

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import spac.stats.recording
from spac import demo
from spac.config import EngineConfig, SamplingConfig
from spac.engine import Engine
from spac.errors import InputError
from spac.papers.moe_spac import MoeSpacOptions
from spac.report import main
from spac.report.figures import Recording, read
from spac.stats.recording import COUNTERS, Recorder
from spac.stats.series import Series
from tests.report.conftest import TIMEOUT_S, report_of
from tests.report.conftest import spac as run_spac

GREEDY = SamplingConfig(temp=0)
VARYING = re.compile(r".*(_s$|_ms_|_per_second|_share$)|(uploads|evictions|bytes_moved|slots_res|vram)")
"""The statistics that differ from run to run, also with --deterministic."""


@pytest.fixture(scope="module")
def engine():
    config = EngineConfig(
        target=demo.TARGET, draft=demo.DRAFT, device="simulated", threads=1, scheduler="lru", sampling=GREEDY
    )
    with Engine(config) as engine:
        yield engine


def recording_of(generation, recorder):
    return Recording(json.loads(json.dumps(recorder.report(generation.stats))))


def test_sums_are_the_statistics(recorded, content):
    stats = json.loads((recorded.parent / "stats.json").read_text())
    assert content["stats"] == stats
    total = read(str(recorded)).total
    assert stats["steps"] == sum(content["lengths"]["steps"])
    assert total("tokens") == sum(content["lengths"]["tokens"]) >= stats["generated_tokens"] - 1
    names = ("steps", "activations", "uploads", "evictions")
    stats |= {"drafted": stats["drafted_tokens"], "accepted": stats["accepted_tokens"]}
    stats["upload_bytes"] = stats["bytes_moved"]["uploads"]
    for name in (*names, "drafted", "accepted", "upload_bytes"):
        assert total(name) == stats[name], name
    assert total("activations_hit") / total("activations") == pytest.approx(stats["hit_rate"])
    assert total("scheduler_ns") / 1e9 == pytest.approx(stats["scheduler_s"], rel=1e-3)
    assert total("time_ns") / 1e9 < stats["decode_s"]  # which has the time between the steps
    assert sum(content["lengths"]["time_ns"]) == pytest.approx(total("time_ns"), rel=1e-4)
    assert total("time_ns") > total("verify_ns") > total("host_wait_ns") + total("host_compute_ns")
    assert 0 < total("device_ns") < total("time_ns")
    assert content["device"] == "measured"


def test_matrices_and_layers_agree_with_the_sums(recorded, content):
    recording = read(str(recorded))
    demand, resident, arrivals = (recording.matrix(name) for name in ("demand", "resident", "arrivals"))
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
    assert governor["curve"]["tokens"] == sorted(governor["curve"]["tokens"])


@pytest.mark.parametrize("scheduler", ["none", "lru", "logistic", "moe-spac"])
def test_a_recorded_run_behaves_as_it_does_without(scheduler, tmp_path):
    """Its text, its counts and the state that it leaves are the same, and prompts are no steps."""
    found = []
    for recorder in (None, Recorder()):
        state = tmp_path / f"{recorder is None}.state"
        config = EngineConfig(
            target=demo.TARGET, draft=demo.DRAFT, device="simulated", threads=1, scheduler=scheduler,
            slots="25%", draft_length=4, deterministic=True, state=state,
            sampling=SamplingConfig(temp=0, seed=1),
        )  # fmt: skip
        with Engine(config) as engine:
            generation = engine.generate(demo.PROMPT, 40, recorder=recorder)
            text = "".join(generation)
        stats = asdict(generation.stats)
        kept = {name: value for name, value in stats.items() if not VARYING.match(name)}
        arrays = {}
        if scheduler != "none":
            with np.load(state) as file:
                arrays = {name: file[name].tolist() for name in file}
        found.append((text, kept, arrays))
    assert found[0] == found[1]
    assert len(recorder.demand.counts) == stats["steps"]
    assert recorder.demand.counts.sum() == stats["activations"]
    if scheduler != "none":
        assert (recording_of(generation, recorder).matrix("demand") == recorder.demand.counts.sum(0)).all()
    assert (recorder.demand.routes >= 0).sum() == stats["activations"]


def test_a_long_run_is_thinned_and_sums_stay(engine, monkeypatch):
    monkeypatch.setattr(spac.stats.recording, "STEP_ROWS", 8)
    generation = engine.generate(demo.PROMPT, 60, recorder=(recorder := Recorder()))
    "".join(generation)
    recording, stats = recording_of(generation, recorder), generation.stats
    steps, total = recording.content["steps"], recording.total
    assert stats.steps > 8 >= len(steps["columns"]["steps"])
    assert steps["per_row"] > 1
    found = total("steps"), total("drafted"), total("uploads")
    assert found == (stats.steps, stats.drafted_tokens, stats.uploads)
    assert total("device_ns") > 0


def test_a_generation_that_nobody_read_to_its_end(engine):
    generation = engine.generate(demo.PROMPT, 60, recorder=(recorder := Recorder()))
    next(generation)
    next(generation)
    assert recording_of(generation, recorder).total("steps") >= generation.stats.steps > 0
    assert generation.stats.reason == ""
    assert engine.experts.trace.on
    del generation
    assert not engine.experts.trace.on


def test_without_the_split_there_are_steps_and_no_experts(tmp_path):
    done = run_spac(
        "run", "--device", "cpu", "--threads", 1, "-n", 5, "--record", "cpu.npz", "-q", cwd=tmp_path
    )
    assert done.code == 0, done.err
    content = json.loads(report_of(tmp_path / "cpu.npz"))
    assert content["experts"] is content["thresholds"] is content["device"] is None
    columns = content["steps"]["columns"]
    assert sum(columns["tokens"]) >= 4  # The first token comes with the prompt.
    assert not any(map(sum, (columns[name] for name in COUNTERS)))


def test_ctrl_c_leaves_a_whole_recording(tmp_path):
    path = tmp_path / "run.npz"
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
    content = read(str(path)).content
    assert content["stats"]["reason"] == "cancelled"
    # The loop may make steps that the reader has not taken.
    assert sum(content["steps"]["columns"]["steps"]) >= content["stats"]["steps"] > 0
    assert [each.name for each in tmp_path.iterdir()] == ["run.npz"]


def test_a_run_that_cannot_start_leaves_the_earlier_recording(tmp_path):
    path = tmp_path / "run.npz"
    path.write_text("earlier")
    done = run_spac("run", "--record", path, "-m", tmp_path / "missing.gguf", "-p", "x", "-q", cwd=tmp_path)
    assert done.code == 2
    assert path.read_text() == "earlier"


KEPT = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@KEPT
@given(share=st.floats(0, 0.9999), bits=st.integers(1, 255))
def test_whatever_is_changed_it_is_refused_or_harmless(recorded, content, share, bits):
    """The archive has checksums. A change of the demand's arrays does not reach the page."""
    data = bytearray(recorded.read_bytes())
    data[int(share * len(data))] ^= bits
    path = recorded.parent / "changed.npz"
    path.write_bytes(data)
    refused = ""
    try:
        found = read(str(path)).content
    except InputError as error:
        refused = str(error)
    assert refused.startswith(str(path)) if refused else found == content
    assert "\n" not in refused


@KEPT
@given(share=st.floats(0, 0.9999))
def test_a_file_that_breaks_off(recorded, share):
    data = recorded.read_bytes()
    path = recorded.parent / "part.npz"
    path.write_bytes(data[: int(share * len(data))])
    with pytest.raises(InputError, match=r"part\.npz is not a recording"):
        read(str(path))


@pytest.mark.parametrize(
    ("report", "why"),
    [
        ("hello", "is not a recording, or is damaged"),
        ("[1, 2]", "is not a recording"),
        ('{"schema": 2, "tokens_per_second": 3}', "is not a recording"),
        ('{"format": "spac-recording", "schema": 2}', "is not a recording"),
        ('{"format": "spac-recording", "schema": 1}', "is a recording of schema 1"),
    ],
)
def test_what_is_no_recording(report, why, tmp_path):
    with zipfile.ZipFile(tmp_path / "bad.npz", "w") as file:
        file.writestr("report.json", report)
    with pytest.raises(InputError, match=re.escape(f"bad.npz {why}")):
        read(str(tmp_path / "bad.npz"))


@pytest.mark.parametrize(
    ("name", "why"), [("bad.npz", "is not a recording"), ("no.npz", "No such file"), (".", "directory")]
)
def test_the_program_says_so_in_one_line(name, why, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.npz").write_text("nothing")
    assert main([name]) == 2
    out, err = capsys.readouterr()
    assert (out, len(err.splitlines())) == ("", 1)
    assert why in err
    assert name in err
    assert [path.name for path in tmp_path.iterdir()] == ["bad.npz"]


@given(st.lists(st.integers(0, 1000), max_size=300), st.sampled_from([2, 4, 8, 16]))
def test_rows_are_sums_of_consecutive_steps(values, capacity):
    series = Series(2, capacity)
    for value in values:
        series.add((1, value))
    rows, described = series.rows, series.described
    assert len(rows) == len(described["steps"]) <= capacity
    assert len(values) == sum(described["steps"])
    assert rows[:, 0].tolist() == described["steps"]
    ends = np.cumsum([0, *described["steps"]])
    for row, start, end in zip(rows, ends, ends[1:], strict=False):
        assert row[1] == sum(values[start:end])
    # Values are merged no more than needed. The next finer rows would not have fitted.
    if described["per_row"] > 1:
        assert len(values) > capacity * described["per_row"] / 2

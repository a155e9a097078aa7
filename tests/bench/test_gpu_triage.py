"""These tests cover the tools for a first visit to a GPU. Crashes and hangs explain themselves, and queries
of the driver are safe."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from bench.gpu_suite import layer_phases, probes, step_profile, watched


def run(code: str, tmp_path: Path, seconds: float = 30.0) -> watched.Ended:
    return watched.run([sys.executable, "-c", code], tmp_path / "logs" / "log.txt", seconds, cwd=tmp_path)


def test_the_first_such_line_names_the_cause(tmp_path: Path) -> None:
    code = (
        "import sys; print('loading'); print('CUDA error: an illegal memory access was encountered');"
        "print('  in function compute', flush=True); sys.exit('RuntimeError: llama_decode returned 2')"
    )
    ended = run(code, tmp_path)
    assert ended.fault == "status 1: CUDA error: an illegal memory access was encountered"
    assert "llama_decode" in ended.output
    assert (tmp_path / "logs" / "log.txt").read_text() == ended.output


@pytest.mark.parametrize(
    ("output", "cause"),
    [
        ("", "no output"),
        ("one\ntwo\n", "two"),
        ("========= ERROR SUMMARY: 0 errors\nlast", "last"),
        ("spac: the device hangs\nTraceback", "spac: the device hangs"),
    ],
)
def test_causes(output: str, cause: str) -> None:
    assert watched.cause(output) == cause


def test_a_crash_tells_where_python_was(tmp_path: Path) -> None:
    ended = run("import ctypes\ndef far_down(): ctypes.string_at(0)\nfar_down()", tmp_path)
    assert ended.code == -11
    assert "in far_down" in ended.output


def test_a_hang_ends_and_tells_its_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # no debugger is found
    ended = run("import time; print('begun', flush=True); time.sleep(60)", tmp_path, 1.5)
    assert (ended.code, ended.fault) == (None, "not done within 2 s")
    assert ended.output.startswith("begun")
    assert "wchan" in ended.output or "comm: python" in ended.output


def test_without_a_driver_every_question_has_an_answer(tmp_path: Path) -> None:
    if subprocess.run(["sh", "-c", "ldconfig -p | grep -q libcuda.so.1"], check=False).returncode == 0:
        pytest.skip("there is a driver here")
    assert probes.ask("link", tmp_path).startswith("link: FAILED: OSError: libcuda.so.1")


def test_a_question_that_hangs_costs_its_own_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "script.py"
    script.write_text("import time; time.sleep(60)")
    monkeypatch.setattr(probes, "__file__", str(script))
    monkeypatch.setattr(probes, "SECONDS", 1.0)
    assert probes.ask("link", tmp_path) == "link: NO ANSWER within 1 s"


def test_a_profile_says_where_the_time_goes() -> None:
    events = [("kernel", 7, 0, 40), ("Memcpy HtoD", 7, 50, 10), ("other", 9, 55, 20), ("kernel", 7, 90, 10)]
    assert step_profile.union(events) == 75  # overlapping time counts once
    text = step_profile.table(events, 1, 1e-3)
    assert "1.00 ms a step without the profiler" in text
    assert "the card is busy 75% of that" in text
    assert "stream 7: 3 events a step" in text
    assert "no events" in step_profile.table([], 1, 1e-3)


def test_a_layer_is_taken_apart_by_its_kernels() -> None:
    """Three layers run on one stream: by copies, in place, and by spac's own kernels. Another stream copies
    experts."""
    names_and_times = (
        ("dense", 0, 10), ("Memcpy DtoH", 12, 2), ("Memcpy DtoH", 16, 2), ("Memcpy HtoD", 20, 1),
        ("k_get_rows_float<int, int>", 22, 1), ("quantize", 23, 1), ("mul", 24, 6), ("Memcpy HtoD", 130, 5),
        ("k_bin_bcast", 136, 2), ("dense", 140, 10), ("k_get_rows_float<int, int>", 151, 1),
        ("k_get_rows_float<float, float>", 152, 4), ("Memcpy HtoD", 160, 1),
        ("k_get_rows_float<int, int>", 162, 1), ("quantize", 163, 1), ("mul", 164, 6),
        ("k_bin_bcast", 270, 5), ("dense", 280, 10), ("spac::send_to_host", 292, 2), ("Memcpy HtoD", 300, 1),
        ("k_get_rows_float<int, int>", 302, 1), ("quantize", 303, 1), ("mul", 304, 6),
        ("spac::take_from_host", 410, 3), ("dense", 414, 1),
    )  # fmt: skip
    events = [(name, 1, start * 1000, length * 1000) for name, start, length in names_and_times]
    events.append(("Memcpy HtoD", 2, 5000, 300_000))
    found = layer_phases.phases(events)
    assert list(found.values()) == [[8.0, 6.0, 4.0], [8.0, 5.0, 3.0], [100.0, 100.0, 100.0]]
    assert layer_phases.phases([]) == {}

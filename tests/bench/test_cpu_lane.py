"""The benchmark of whole models on the CPU alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from bench import cpu_lane
from bench.__main__ import main
from bench.processes import environment
from spac import demo

PEER = """#!/bin/sh
echo 'a line of its own'
echo '[{"n_prompt": 4, "n_gen": 0, "avg_ts": 4.0}, {"n_prompt": 256, "n_gen": 0, "avg_ts": 8.0},'
echo ' {"n_prompt": 0, "n_gen": 32, "avg_ts": 2.0}]'
"""


@pytest.mark.usefixtures("reference_lib")
def test_every_system_has_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program = tmp_path / "llama-bench"
    program.write_text(PEER)
    program.chmod(0o755)
    page = tmp_path / "page.md"
    options = ["--threads", "1", "--rounds", "1", "--peer", f"other={program} -x 1", "--out", str(page)]
    assert main(["cpu_lane", str(demo.TARGET), *options]) == 0
    lines = page.read_text().splitlines()
    table = lines[lines.index("| system | 1 token | 4 tokens | prompt of 256 |") :]
    assert [line.split(" | ")[0] for line in table[2 : 3 + len(cpu_lane.OWN)]] == [
        f"| {name}" for name in (*cpu_lane.OWN, "other")
    ]
    assert "| other | 2.0 (2.0–2.0) | 4.0 (4.0–4.0) | 8.0 (8.0–8.0) |" in lines
    assert str(tmp_path) not in page.read_text()


def test_the_unpatched_library_is_measured_without_spac(reference_lib: Path) -> None:
    code = "import sys, bench.unpatched; print([name for name in sys.modules if name.startswith('spac')])"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env=environment(reference_lib),
    )
    assert done.stdout.strip() == "[]"


def test_bad_input_gets_one_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["cpu_lane", "no-such.gguf"]) == 2
    monkeypatch.setattr(cpu_lane, "reference_library", lambda: None)
    assert main(["cpu_lane", str(demo.TARGET), "--rounds", "1", "--threads", "1"]) == 2
    assert "SPAC_REFERENCE_LIB" in capsys.readouterr().err.splitlines()[1]

"""The comparison: that it runs where there is no GPU, goes on where it stopped, and how it reckons."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from bench.compare import comparison
from bench.compare.__main__ import arguments as parser
from bench.compare.__main__ import main
from bench.compare.cells import Engine, engines, grid, layer_bytes, layers_on_cpu
from bench.compare.job import Job, Result, Run
from bench.compare.likelihood import surprise
from bench.compare.page import Demand, ideal_speed, table
from bench.compare.roofline import Bandwidths, Weights, ideal_step_s
from bench.compare.server import command
from bench.gpu_suite.side_by_side import plan

ROOT = Path(__file__).resolve().parents[2]


def compare(out: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if k != "LLAMA_CPP_LIB_PATH"}
    return subprocess.run(
        [sys.executable, "-m", "bench.compare", str(out), *arguments],
        cwd=ROOT, capture_output=True, text=True, check=False, env=environment,
    )  # fmt: skip


def test_side_by_side_on_the_stand_in(twin: tuple[Path, Path], reference_lib: Path, tmp_path: Path) -> None:
    arguments = [
        "--target", str(twin[0]), "--draft", str(twin[1]), "--device", "stand-in", "--quick",
        "--budgets", "30%", "--threads", "1", "--reference", str(reference_lib),
        "--only", "spac moe-spac, draft", "experts on CPU, draft", "llama.cpp --n-cpu-moe",
    ]  # fmt: skip
    done = compare(tmp_path, *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "compare.json").read_text())
    assert found["not_run"] == []
    rows = {row["engine"]: row for row in found["rows"]}
    assert set(rows) == {
        "spac moe-spac, draft", "llama.cpp, experts on CPU, draft", "llama.cpp --n-cpu-moe",
        "llama.cpp --n-cpu-moe, draft", "llama.cpp --n-cpu-moe, draft of 3",
    }  # fmt: skip
    parts = rows["spac moe-spac, draft"]["breakdown"]
    assert parts["draft ms"] + parts["verify ms"] < 1.05 * parts["step ms"]
    assert min(parts["uploads"], parts["waits"], parts["experts on the CPU ms"], parts["joined MB"]) > 0
    assert rows["llama.cpp --n-cpu-moe"]["breakdown"] is None
    for row in rows.values():
        assert row["same_text"], row
        assert min(row["decode"], row["decode_cold"], row["prefill"], row["first_token_s"], row["ram"]) > 0
    assert rows["llama.cpp --n-cpu-moe"]["n_cpu_moe"] == 3  # one of the 4 layers fits
    assert 0 < rows["spac moe-spac, draft"]["hit_rate"] < 1
    # Both draft from the same model on the same text.
    drafting = [rows["spac moe-spac, draft"], rows["llama.cpp, experts on CPU, draft"]]
    assert drafting[0]["tokens_per_step"] == pytest.approx(drafting[1]["tokens_per_step"], rel=0.15)
    ours, theirs = found["perplexity"]["spac"], found["perplexity"]["llama.cpp"]
    assert ours == pytest.approx(theirs, rel=0.01)
    assert 2 < theirs < 30
    # What is done is not done again, and what is out of time is named.
    before = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "cells").glob("*.json")}
    later = compare(tmp_path, *arguments[:-3], "spac", "--seconds", "5")
    after = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "cells").glob("*.json")}
    assert later.returncode == 3
    assert before == after
    assert "spac_lru__no_draft-30%-64: out of time" in later.stdout


def test_bad_input_is_one_line(
    reference_lib: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    demo = str(ROOT / "python" / "spac" / "demo" / "target.gguf")
    for arguments, message in (
        (["--target", str(tmp_path / "none.gguf")], "none.gguf"),
        (["--target", demo, "--device", "stand-in"], "give --text FILE"),
    ):
        assert main([str(tmp_path), *arguments, "--reference", str(reference_lib)]) == 2
        error = capsys.readouterr().err
        assert message in error
        assert len(error.strip().splitlines()) == 1


def test_llama_cpp_gets_the_vram_that_spac_took(
    twin: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a GPU played by a formula: what runs needs some MB, layers of experts on it, spac's slots."""
    sizes = [4 << 30] * 4  # as large as experts are: what measuring is off by is small beside them
    seen: list[tuple[str, int | None, int]] = []

    def run_cell(job: Job, _work: Path, key: str, _reference: Path | None, _seconds: float) -> Result:
        on_device = sum(sizes[job.n_cpu_moe or 0 :]) if job.kind != "spac" else 9 << 30
        # All layers but one on the device need a little more than the sum says.
        more = (200 << 20) if job.n_cpu_moe == 2 else 0
        vram = (1 << 30) + bool(job.draft) * (1 << 29) + on_device + more
        seen.append((key, job.n_cpu_moe, vram))
        return Result(runs=[asdict(run_of({}))], peak_vram=vram)

    monkeypatch.setattr(comparison, "run_cell", run_cell)
    arguments = [str(tmp_path), "--target", str(twin[0]), "--draft", str(twin[1]), "--device", "CUDA0"]
    arguments += ["--budgets", "50%", "--contexts", "64", "--schedulers", "lru", "--reference", str(tmp_path)]
    found = comparison.Comparison(parser().parse_args(arguments))
    found.sizes = sizes
    found.run()
    assert found.not_run == []
    limit = max(vram for key, _, vram in seen if key.startswith("spac"))
    tuned = {key: n for key, n in found.n_cpu_moe.items() if "--n-cpu-moe" in key}
    # 9.5 GB beyond what is bare without a draft, 9 with one: two layers, but for the 200 MB.
    assert tuned == {
        "llama.cpp_--n-cpu-moe-50%-64": 2, "llama.cpp_--n-cpu-moe__draft-50%-64": 2,
        "llama.cpp_--n-cpu-moe__draft_of_3-50%-64": 2,
    }  # fmt: skip
    assert all(vram <= limit + comparison.VRAM_NOISE for key, n, vram in seen if n == tuned.get(key))
    # With less to spare the first try is over, and the next one is not.
    again = comparison.Comparison(parser().parse_args(arguments))
    again.sizes = [int(4.45 * 2**30)] * 4
    sizes[:] = again.sizes
    again.run()
    tried = [n for key, n, _ in seen if key == "llama.cpp_--n-cpu-moe__draft-50%-64"]
    assert tried == [2, 2, 3]


def test_layers_are_tuned_to_the_room() -> None:
    sizes = [0, 5, 5, 7]
    assert [layers_on_cpu(sizes, room) for room in (0, 6, 7, 12, 17, 99)] == [4, 4, 3, 2, 0, 0]


def test_layer_bytes_are_the_experts(twin: tuple[Path, Path]) -> None:
    sizes = layer_bytes(twin[0])
    assert len(sizes) == 4
    assert min(sizes) > 128 * 3 * 128 * 32 * 0.6
    assert layer_bytes(twin[1]) == [0, 0]


def test_every_cell_is_there_once() -> None:
    rows = engines(["lru", "moe-spac"], True)
    cells = list(grid(rows, ["10%", "50%"], [512, 4096]))
    assert len({cell.key for cell in cells}) == len(cells)
    by_budget = sum(row.by_budget for row in rows)
    assert len(cells) == 2 * (2 * by_budget + len(rows) - by_budget)
    assert {cell.engine.name for cell in cells} == {row.name for row in rows}


def test_the_ideal_is_bound_by_the_slower_side() -> None:
    widths = Bandwidths(dram=10.0, link=None, device=100.0)
    target, draft = Weights(dense=100, expert=5.0), Weights(dense=50, expert=0.0)
    assert ideal_step_s(widths, target, resident=20, missing=1, draft=None, drafted=0) == pytest.approx(2.0)
    assert ideal_step_s(widths, target, resident=0, missing=8, draft=draft, drafted=4) == pytest.approx(4 + 2)


def run_of(figures: dict[str, float], steps: int = 2, tokens: int = 6) -> Run:
    return Run(8, 0.5, 0.6, 1.5, list(range(tokens)), steps, drafted=8, accepted=4, figures=figures)


def test_the_page_shows_warm_medians() -> None:
    from bench.compare.cells import Cell
    from bench.compare.page import row_of

    counts = {"hit_rate": 0.5, "host_wait_s": 0.004, "distinct": 40, "distinct_hit": 10}
    runs = [run_of(counts, tokens=3), run_of(counts), run_of(counts)]
    result = Result(runs=[asdict(run) for run in runs], peak_ram=2_000_000_000, peak_vram=None)
    demand = Demand.of(result.each)
    assert demand == Demand(distinct=20, resident=5)
    widths = Bandwidths(dram=1.0, link=None, device=1e9)
    ideal = ideal_speed(result.each, demand, demand.resident, widths, Weights(0, 0.1), None)
    assert ideal == pytest.approx(3 / 1.5)
    cell = Cell(Engine("spac lru, draft", "spac", True, scheduler="lru"), "17%", 64)
    row = row_of(cell, result, None, ideal, [run.tokens for run in runs])
    assert (row.decode, row.decode_cold, row.tokens_per_step) == (pytest.approx(4), pytest.approx(2), 3)
    assert (row.acceptance, row.wait_ms, row.same_text) == (0.5, pytest.approx(2), True)
    text = table([row])
    assert "### 17% of the experts, prompts of 64 tokens" in text
    figures = "4.0 | 2.0 | 16 | 600 ms | 50% | 3.00 | 50% | 2.00 ms | - | 2.00 GB | 2 | 200% | same"
    assert f"| spac lru, draft | {figures} |" in text


def test_surprise_is_the_negative_log_likelihood() -> None:
    rng = np.random.default_rng(0)
    logits = rng.normal(0, 20, (5, 11)).astype(np.float32)
    following = [3, 1, 0, 10, 7]
    p = np.exp(logits.astype(np.float64) - logits.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    assert surprise(logits, following) == pytest.approx(-np.log(p[np.arange(5), following]).sum())


def test_the_server_gets_the_same_setting() -> None:
    job = Job(
        kind="llama-server", target="t.gguf", prompts=[[1]], n_predict=4, ctx=512, threads=3, device="CUDA1",
        draft="d.gguf", draft_length=5, n_cpu_moe=7, program="llama-server",
    )  # fmt: skip
    words = " ".join(command(job, 1234))
    for part in (
        "-m t.gguf",
        "-md d.gguf",
        "--spec-draft-n-max 5",
        "--n-cpu-moe 7",
        "-mg 1",
        "-c 512",
        "-t 3",
    ):
        assert part in words


def test_stage_2_is_a_part_of_stage_3(twin: tuple[Path, Path], tmp_path: Path) -> None:
    """Its cells are among the whole grid's, and the engines that decide are in it."""
    base = ["--target", str(twin[0]), "--draft", str(twin[1]), "--reference", str(tmp_path)]
    keys = []
    for stage in (2, 3):
        args = parser().parse_args([str(tmp_path), *base, *plan(stage, False)])
        keys.append({cell.key for cell in comparison.Comparison(args).grid})
    assert keys[0] < keys[1]
    assert {"spac_moe-spac__governor-17%-512", "llama.cpp_--n-cpu-moe__draft-17%-512"} <= keys[0]
    assert len(keys[0]) <= 10

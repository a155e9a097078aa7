"""The comparison runs without a GPU, continues where it stopped, and computes its figures correctly."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from bench.compare import comparison
from bench.compare.__main__ import arguments as parser
from bench.compare.__main__ import main, not_run
from bench.compare.breakdown import breakdown_of, cpu_rate
from bench.compare.cells import (
    Cell,
    Engine,
    engines,
    grid,
    layer_bytes,
    layers_on_cpu,
    run_cell,
)
from bench.compare.job import Job, Result, Run
from bench.compare.likelihood import apart, perplexity, surprises
from bench.compare.page import breakdowns, table, verdict
from bench.compare.roofline import Bandwidths, Weights, ideal_step_s
from bench.compare.rows import Demand, ideal_speed, row_of
from tools.models import exchange_experts

ROOT = Path(__file__).resolve().parents[2]


def compare(out: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if k != "LLAMA_CPP_LIB_PATH"}
    return subprocess.run(
        [sys.executable, "-m", "bench.compare", str(out), *arguments],
        cwd=ROOT, capture_output=True, text=True, check=False, env=environment,
    )  # fmt: skip


def test_side_by_side_on_the_simulated(twin: tuple[Path, Path], reference_lib: Path, tmp_path: Path) -> None:
    arguments = [
        "--target", str(twin[0]), "--draft", str(twin[1]), "--device", "simulated", "--quick",
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
    shares = ("draft", "dense", "queue", "waits", "experts", "scheduler", "rest")
    assert sum(parts[name] for name in shares) == pytest.approx(parts["step"], rel=0.1)
    assert min(parts[name] for name in shares) >= 0 < min(parts["waits"], parts["experts"], parts["queue"])
    assert min(parts["counts"][name] for name in ("uploads", "waits", "link", "resident")) > 0
    theirs = rows["llama.cpp --n-cpu-moe, draft"]["breakdown"]
    assert theirs["draft"] + theirs["dense"] + theirs["rest"] == pytest.approx(theirs["step"])
    assert theirs["experts"] is None
    assert rows["spac moe-spac, draft"]["bound"] > 0
    for row in rows.values():
        assert row["same_text"], row
        assert min(row["decode"], row["decode_cold"], row["prefill"], row["first_token_s"], row["ram"]) > 0
        assert row["follow_up_s"] > 0
    assert rows["llama.cpp --n-cpu-moe"]["n_cpu_moe"] == 3  # one of the 4 layers fits
    assert 0 < rows["spac moe-spac, draft"]["hit_rate"] < 1
    # Both draft with the same model for the same text.
    drafting = [rows["spac moe-spac, draft"], rows["llama.cpp, experts on CPU, draft"]]
    assert drafting[0]["tokens_per_step"] == pytest.approx(drafting[1]["tokens_per_step"], rel=0.15)
    ours, plain = found["perplexity"]["spac"], found["perplexity"]["llama.cpp"]
    assert ours == pytest.approx(plain, rel=0.01)
    assert 2 < plain < 30
    assert found["wrong"] == []
    # Finished cells do not run again, and cells that are out of time are named.
    before = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "cells").glob("*.json")}
    later = compare(tmp_path, *arguments[:-3], "spac", "--seconds", "5")
    after = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "cells").glob("*.json")}
    assert later.returncode == 3
    assert before == after
    assert "out of time: spac_logistic__draft-30%-64, " in later.stdout


def test_bad_input_is_one_line(
    reference_lib: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    demo = str(ROOT / "python" / "spac" / "demo" / "target.gguf")
    for arguments, message in (
        (["--target", str(tmp_path / "none.gguf")], "none.gguf"),
        (["--target", demo, "--device", "simulated"], "give --text FILE"),
    ):
        assert main([str(tmp_path), *arguments, "--reference", str(reference_lib)]) == 2
        error = capsys.readouterr().err
        assert message in error
        assert len(error.strip().splitlines()) == 1


def test_llama_cpp_gets_the_vram_that_spac_took(
    twin: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A formula replaces the GPU. A run needs some MB, and the expert layers on the GPU or spac's slots."""
    sizes = [4 << 30] * 4  # as large as real experts, so that the error of measuring is small beside them
    seen: list[tuple[str, int | None, int]] = []

    def run_cell(job: Job, work: Path, key: str, _reference: Path | None, _seconds: float) -> Result:
        job.write(work / f"{key}.job.json")
        on_device = sum(sizes[job.n_cpu_moe or 0 :]) if job.kind != "spac" else 9 << 30
        # With two layers' experts on the CPU, a run needs a little more memory than the sum.
        more = (200 << 20) if job.n_cpu_moe == 2 else 0
        vram = (1 << 30) + bool(job.draft) * (1 << 29) + on_device + more
        seen.append((key, job.n_cpu_moe, vram))
        return Result(runs=[asdict(run_of({}))], peak_vram=vram)

    monkeypatch.setattr(comparison, "run_cell", run_cell)
    monkeypatch.setattr(comparison.Comparison, "bandwidths", lambda self: None)
    monkeypatch.setattr(comparison.Comparison, "likelihoods", lambda self: {})
    arguments = [str(tmp_path), "--target", str(twin[0]), "--draft", str(twin[1]), "--device", "CUDA0"]
    arguments += ["--budgets", "50%", "--contexts", "64", "--schedulers", "lru", "--reference", str(tmp_path)]
    arguments += ["--peer", "peer=run {target} --port {port} --n-cpu-moe {n_cpu_moe}"]
    found = comparison.Comparison(parser().parse_args(arguments))
    found.sizes = sizes
    found.run()
    assert found.not_run == []
    limit = max(vram for key, _, vram in seen if key.startswith("spac"))
    tuned = {key: n for key, n in found.n_cpu_moe.items() if "--n-cpu-moe" in key}
    # Beside a bare run, 9.5 GB are left without a draft and 9 GB with one: two layers and the 200 MB fit.
    assert tuned == {
        "llama.cpp_--n-cpu-moe-50%-64": 2, "llama.cpp_--n-cpu-moe__draft-50%-64": 2,
        "llama.cpp_--n-cpu-moe__draft_of_3-50%-64": 2, "llama.cpp_--n-cpu-moe_--no-host-50%-64": 2,
        "llama.cpp_--n-cpu-moe_--no-host__draft-50%-64": 2,
    }  # fmt: skip
    assert found.n_cpu_moe["peer-50%-64"] == 2
    assert all(vram <= limit + comparison.VRAM_NOISE for key, n, vram in seen if n == tuned.get(key))
    # With less memory left, the first try exceeds the limit, and the next one does not.
    again = comparison.Comparison(parser().parse_args(arguments))
    again.sizes = [int(4.45 * 2**30)] * 4
    sizes[:] = again.sizes
    again.run()
    tried = [n for key, n, _ in seen if key == "llama.cpp_--n-cpu-moe__draft-50%-64"]
    assert tried == [2, 2, 3]


def test_what_hangs_is_tried_last_and_what_lacks_time_again(
    twin: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a cell that hangs would take the time of every call."""
    hanging, seen = "spac_lru__draft-50%-64", []

    def run_cell(job: Job, work: Path, key: str, _reference: Path | None, _seconds: float) -> Result:
        seen.append(key)
        job.write(work / f"{key}.job.json")
        slow = Result(error="not done within 9 s")
        result = slow if key == hanging else Result(runs=[asdict(run_of({}))])
        result.write(work / f"{key}.json")
        return result

    monkeypatch.setattr(comparison, "run_cell", run_cell)
    monkeypatch.setattr(comparison.Comparison, "bandwidths", lambda self: None)
    monkeypatch.setattr(comparison.Comparison, "likelihoods", lambda self: {})

    def run(*contexts: str, seconds: float = 540) -> list[str]:
        seen.clear()
        base = [str(tmp_path), "--target", str(twin[0]), "--draft", str(twin[1]), "--device", "simulated"]
        base += ["--reference", str(tmp_path), "--budgets", "50%", "--schedulers", "lru"]
        found = comparison.Comparison(
            parser().parse_args([*base, "--seconds", str(seconds), "--contexts", *contexts])
        )
        found.run()
        return found.not_run

    assert run("64") == [f"{hanging}: not done within 9 s"]
    assert seen[0] == hanging
    assert run("64", "96") == [f"{hanging}: not done within 9 s"]
    assert len(seen) > 1
    assert seen[-1] == hanging
    # Here the call itself has little time left, so the cell is not at fault.
    assert run("64", seconds=60) == [f"{hanging}: out of time"]
    assert not (tmp_path / "cells" / f"{hanging}.json").exists()


def test_layers_are_tuned_to_the_room() -> None:
    sizes = [0, 5, 5, 7]
    assert [layers_on_cpu(sizes, room) for room in (0, 6, 7, 12, 17, 99)] == [4, 4, 3, 2, 0, 0]


def test_layer_bytes_are_the_experts(twin: tuple[Path, Path]) -> None:
    sizes = layer_bytes(twin[0])
    assert len(sizes) == 4
    assert min(sizes) > 128 * 3 * 128 * 32 * 0.6
    assert layer_bytes(twin[1]) == [0, 0]


def test_every_cell_is_there_once() -> None:
    rows = engines(["lru", "moe-spac"], [Engine("a server", "peer", False, command="run {target}")])
    cells = list(grid(rows, ["10%", "50%"], [512, 4096]))
    assert len({cell.key for cell in cells}) == len(cells)
    by_budget = sum(row.by_budget for row in rows)
    assert len(cells) == 2 * (2 * by_budget + len(rows) - by_budget)
    assert {cell.engine.name for cell in cells} == {row.name for row in rows}


def test_bandwidths_that_hang_cost_no_cell(
    twin: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hang(command: list[str], **options: float) -> None:
        raise subprocess.TimeoutExpired(command, options["timeout"])

    base = [str(tmp_path), "--target", str(twin[0]), "--reference", str(tmp_path)]
    found = comparison.Comparison(parser().parse_args(base))
    monkeypatch.setattr(subprocess, "run", hang)
    assert found.bandwidths() is None
    assert found.bandwidths() is None
    assert found.not_run == ["bandwidths: not done within 60 s"]


def test_the_ideal_is_bound_by_the_slower_side() -> None:
    widths = Bandwidths(dram=10.0, link=None, device=100.0)
    target, draft = Weights(dense=100, expert=5.0), Weights(dense=50, expert=0.0)
    assert ideal_step_s(widths, target, resident=20, missing=1, draft=None, drafted=0) == pytest.approx(2.0)
    assert ideal_step_s(widths, target, resident=0, missing=8, draft=draft, drafted=4) == pytest.approx(4 + 2)


def run_of(figures: dict[str, float], steps: int = 2, tokens: int = 6) -> Run:
    return Run(8, 0.5, 0.6, 1.5, list(range(tokens)), steps, drafted=8, accepted=4, figures=figures)


def grid_cell() -> Cell:
    return Cell(Engine("spac lru, draft", "spac", True, scheduler="lru"), "17%", 64)


def test_the_page_shows_warm_medians() -> None:
    counts = {"hit_rate": 0.5, "host_wait_s": 0.004, "distinct": 40, "distinct_hit": 10, "verify_s": 0.5}
    runs = [run_of(counts, tokens=3), run_of(counts), run_of(counts)]
    result = Result(
        runs=[asdict(run) for run in runs], peak_ram=2_000_000_000, bound=0.4, host_memory="pinned mapping",
        pinned_bytes=1_500_000_000, follow_ups_s=[0.9, 0.05, 0.07],
    )  # fmt: skip
    demand = Demand.of(result.each)
    assert demand == Demand(distinct=20, resident=5)
    widths = Bandwidths(dram=1.0, link=None, device=1e9)
    ideal = ideal_speed(result.each, demand, demand.resident, widths, Weights(0, 0.1), None)
    assert ideal == pytest.approx(3 / 1.5)
    cell = grid_cell()
    row = row_of(cell, result, None, ideal, [run.tokens for run in runs])
    assert (row.decode, row.decode_cold, row.tokens_per_step) == (pytest.approx(4), pytest.approx(2), 3)
    assert (row.acceptance, row.wait_ms, row.same_text) == (0.5, pytest.approx(2), True)
    text = table([row])
    assert "### 17% of the experts, prompts of 64 tokens" in text
    times = "4.0 | 4.0–4.0 | 2.0 | 16 | 600 ms | 600 ms | 70 ms"
    figures = f"{times} | 50% | 3.00 | 50% | - | 40% | 2.00 ms | - | 2.00 GB"
    assert f"| spac lru, draft | {figures} | pinned mapping, 1.50 GB pinned | 2 | 200% | same" in text
    other = row_of(cell, result, None, ideal, [[0]])
    assert "differs" in table([other])
    assert verdict([row, other])[-1] == "Texts other than the first engine's: spac lru, draft at 17%, 64."


def test_a_breakdown_adds_up() -> None:
    """Each step takes 100 ms: 20 to draft 4 tokens, 10 of waits, 40 for 8 missing experts, 5 to queue, 15
    dense."""
    figures = {
        "draft_s": 0.2, "verify_s": 0.7, "host_wait_s": 0.1, "host_compute_s": 0.4, "queue_s": 0.05,
        "scheduler_s": 0.03, "distinct": 200, "distinct_hit": 120, "uploads": 30, "upload_s": 0.5,
        "bytes_moved": {"uploads": 9e6, "downloads": 5e5, "joins": 5e5}, "host_waits": 480,
    }  # fmt: skip
    run = Run(8, 0.5, 0.6, 1.0, list(range(30)), 10, drafted=40, accepted=20, figures=figures)
    parts = breakdown_of([run])
    assert parts is not None
    times = (parts.step, parts.draft, parts.waits, parts.experts, parts.queue, parts.dense, parts.scheduler)
    assert times == pytest.approx((100, 20, 10, 40, 5, 15, 3))
    assert parts.rest == pytest.approx(7)
    assert parts.counts["copying"] == pytest.approx(0.5)
    assert parts.counts["link"] == pytest.approx(1e7)
    target = Weights(0, 2500.0)
    assert cpu_rate(parts, target) == pytest.approx(5e5)  # 8 experts of 2500 bytes are read in 40 ms
    assert breakdown_of([run_of({})]) is None
    runs = [replace(run, decode_s=seconds) for seconds in (9.0, 1.0, 3.0)]
    result = Result(runs=[asdict(each) for each in runs])
    row = row_of(grid_cell(), result, None, None, None)
    assert row.decode == pytest.approx(20)  # the median of 30 and 10; the cold run does not count
    assert row.decode_range == pytest.approx((10, 30))
    assert "| spac lru, draft | 200.00 |" in breakdowns([row], None, target)


def test_what_was_not_run_is_a_line_per_reason() -> None:
    lines = [*(f"cell {i}: out of time" for i in range(40)), "cell x: failed: badly"]
    named = ", ".join(f"cell {i}" for i in range(12))
    assert not_run(lines) == [f"- out of time: {named} and 28 more", "- failed: badly: cell x"]


def test_a_wrong_expert_is_seen(twin: tuple[Path, Path], reference_lib: Path, tmp_path: Path) -> None:
    """Two experts of every layer are exchanged. The perplexity hardly changes, but a token's likelihood
    does."""
    args = parser().parse_args(
        [str(tmp_path), "--target", str(twin[0]), "--device", "simulated", "--reference", str(reference_lib),
         "--budgets", "50%", "--threads", "1", "--contexts", "64", "--texts", "1"]
    )  # fmt: skip
    subject = comparison.Comparison(args)
    assert subject.likeness()[1] == []
    values = subject.likelihoods()
    assert apart(values["spac"], values["llama.cpp"]) == 0
    ours = subject.cells / "likelihoods-spac.json"
    altered = exchange_experts(twin[0], tmp_path / "exchanged.gguf")
    job = replace(Job.read(ours.with_suffix(".job.json")), target=str(altered))
    assert run_cell(job, subject.cells, "likelihoods-spac", None, 60).surprises
    lines, wrong = subject.likeness()
    assert len(wrong) == 1
    assert "nats a token off" in wrong[0]
    assert len(lines) == 4


def test_a_wrong_text_is_seen(tmp_path: Path) -> None:
    """The bundled target is compared with a copy in which two experts of every layer are exchanged."""
    demo = ROOT / "python" / "spac" / "demo" / "target.gguf"
    job = Job(
        kind="spac", target=str(demo), prompts=[[5, 6, 7, 8]], n_predict=12, ctx=64, threads=1,
        device="simulated", slots="20%", scheduler="lru",
    )  # fmt: skip
    altered = exchange_experts(demo, tmp_path / "exchanged.gguf")
    texts = [
        run_cell(replace(job, target=str(path)), tmp_path, f"cell-{i}", None, 60).each[0].tokens
        for i, path in enumerate((demo, demo, altered))
    ]
    assert texts[0] == texts[1] != texts[2]


def test_surprise_is_the_negative_log_likelihood() -> None:
    rng = np.random.default_rng(0)
    logits = rng.normal(0, 20, (5, 11)).astype(np.float32)
    following = [3, 1, 0, 10, 7]
    p = np.exp(logits.astype(np.float64) - logits.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    found = surprises(logits, following)
    assert found == pytest.approx(-np.log(p[np.arange(5), following]))
    assert perplexity(found) == pytest.approx(np.exp(np.mean(found)))
    assert apart([1.0, 2.0], [2.0, 1.0]) == 1  # although their perplexities are equal


def test_what_decides_comes_first() -> None:
    """The first cells have 17 % and the short context. A tuned engine follows those that it is tuned to."""
    cells = list(grid(engines(["logistic", "moe-spac", "lru"]), ["17%", "50%"], [512, 4096]))
    names = [cell.engine.name for cell in cells[:7]]
    assert names == [
        "spac logistic, draft", "llama.cpp, experts on CPU, draft", "llama.cpp --n-cpu-moe, draft",
        "spac logistic, governor", "llama.cpp, experts on CPU", "llama.cpp --n-cpu-moe",
        "spac moe-spac, governor",
    ]  # fmt: skip
    # For every other budget and context, both kinds of each side come first.
    others = [cell for cell in cells if (cell.budget, cell.context) == ("50%", 512)]
    assert [cell.engine.name for cell in others[:4]] == [names[i] for i in (0, 2, 3, 5)]
    n_first = len({cell.engine for cell in cells})
    assert {(cell.budget, cell.context) for cell in cells[:n_first]} == {("17%", 512)}
    for i, cell in enumerate(cells):
        if cell.engine.tuned:
            before = [other for other in cells[:i] if other.context == cell.context]
            assert any(other.engine.kind == "spac" and other.budget == cell.budget for other in before)
            alike = [other.engine for other in before if other.engine.speculates == cell.engine.speculates]
            assert any(one.kind == cell.engine.kind and not one.tuned for one in alike)

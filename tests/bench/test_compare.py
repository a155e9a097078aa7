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

from bench.__main__ import main
from bench.compare import comparison
from bench.compare.cells import Cell, grid, layer_bytes, layers_on_cpu, run_cell
from bench.compare.job import Job, Result, Run, surprises
from bench.compare.likeness import apart, judged, perplexity
from bench.compare.rivals import Engine, engines
from bench.compare.tables import figures, groups, not_run, row_of, verdict
from tests.bench.comparisons import comparison_of
from tools.models import exchange_experts

pytestmark = pytest.mark.nightly

ROOT = Path(__file__).resolve().parents[2]


def compare(out: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if k != "LLAMA_CPP_LIB_PATH"}
    return subprocess.run(
        [sys.executable, "-m", "bench", "compare", str(out), *arguments],
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
    facts = json.loads((tmp_path / "compare.json").read_text())
    found = facts["figures"]
    assert facts["command"].startswith("python -m bench compare ")
    assert str(tmp_path) not in (tmp_path / "compare.md").read_text()
    assert found["not_run"] == []
    rows = {row["engine"]: row for row in found["rows"]}
    assert set(rows) == {
        "spac moe-spac, draft", "llama.cpp, experts on CPU, draft", "llama.cpp --n-cpu-moe",
        "llama.cpp --n-cpu-moe, draft", "llama.cpp --n-cpu-moe, draft of 3",
    }  # fmt: skip
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
        (["--target", demo, "--threads", "0"], "--threads: at least 1"),
    ):
        assert main(["compare", str(tmp_path), *arguments, "--reference", str(reference_lib)]) == 2
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
    monkeypatch.setattr(comparison.Comparison, "likelihoods", lambda self: {})
    peer = "--peer", "peer=run {target} --port {port} --n-cpu-moe {n_cpu_moe}"
    found = comparison_of(twin, tmp_path, *peer, device="CUDA0")
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
    again = comparison_of(twin, tmp_path, *peer, device="CUDA0")
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
    monkeypatch.setattr(comparison.Comparison, "likelihoods", lambda self: {})

    def run(*contexts: str, seconds: float = 540) -> list[str]:
        seen.clear()
        found = comparison_of(twin, tmp_path, "--seconds", str(seconds), "--contexts", *contexts)
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


def run_of(counts: dict[str, float], steps: int = 2, tokens: int = 6) -> Run:
    return Run(8, 0.5, 0.6, 1.5, list(range(tokens)), steps, drafted=8, accepted=4, figures=counts)


def grid_cell() -> Cell:
    return Cell(Engine("spac lru, draft", "spac", speculates=True, scheduler="lru"), "17%", 64)


def test_the_page_shows_warm_medians() -> None:
    counts = {"hit_rate": 0.5, "host_wait_s": 0.004, "distinct": 40, "distinct_hit": 10, "verify_s": 0.5}
    runs = [run_of(counts, tokens=3), run_of(counts), run_of(counts)]
    result = Result(
        runs=[asdict(run) for run in runs], peak_ram=2_000_000_000, bound=0.4, host_memory="pinned mapping",
        pinned_bytes=1_500_000_000, follow_ups_s=[0.9, 0.05, 0.07],
    )  # fmt: skip
    row = row_of(grid_cell(), result, None, same_text=True)
    assert (row["decode"], row["decode_cold"], row["tokens_per_step"]) == (
        pytest.approx(4),
        pytest.approx(2),
        3,
    )
    assert (row["acceptance"], row["wait_s"]) == (0.5, pytest.approx(0.002))
    assert [title for title, _ in groups([row])] == ["17% of the experts, prompts of 64 tokens"]
    speeds = "4.0 (4.0–4.0) | 2.0 | 16 | 600 ms | 600 ms | 70 ms"
    more = "50% | 3.00 | 50% | - | 40% | 2.00 | - | 2.00 GB | pinned mapping, 1.50 GB pinned | same"
    assert f"| spac lru, draft | {speeds} | {more} |" in figures([row])
    other = row_of(grid_cell(), result, None, same_text=False)
    assert "differs" in figures([other])
    assert verdict([row, other])[-1] == "Texts other than the first engine's: spac lru, draft at 17%, 64."


def test_what_was_not_run_is_a_line_per_reason() -> None:
    lines = [*(f"cell {i}: out of time" for i in range(40)), "cell x: failed: badly"]
    named = ", ".join(f"cell {i}" for i in range(12))
    assert not_run(lines) == [f"- out of time: {named} and 28 more", "- failed: badly: cell x"]


def test_a_wrong_expert_is_seen(twin: tuple[Path, Path], reference_lib: Path, tmp_path: Path) -> None:
    """Two experts of every layer are exchanged. The perplexity hardly changes, but a token's likelihood
    does."""
    words = "--reference", str(reference_lib), "--threads", "1", "--texts", "1"
    subject = comparison_of(twin, tmp_path, *words, draft=False)
    assert judged(subject.likelihoods())[1] == []
    values = subject.likelihoods()
    assert apart(values["spac"], values["llama.cpp"]) == 0
    ours = subject.cells / "likelihoods-spac.json"
    altered = exchange_experts(twin[0], tmp_path / "exchanged.gguf")
    job = replace(Job.read(ours.with_suffix(".job.json")), target=str(altered))
    assert run_cell(job, subject.cells, "likelihoods-spac", None, 60).surprises
    lines, wrong = judged(subject.likelihoods())
    assert len(wrong) == 1
    assert "nats a token off" in wrong[0]
    assert len(lines) == 4


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
    assert len({cell.key for cell in cells}) == len(cells)
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

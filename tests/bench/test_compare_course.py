"""The comparison chooses threads first, and runs the first pair again at the end."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest

from bench.compare import comparison
from bench.compare.cells import Cell
from bench.compare.comparison import OUT_OF_TIME
from bench.compare.job import Job, Result, Run
from bench.compare.tables import repeats, rows_of, threads_of
from tests.bench.comparisons import comparison_of

PAIR = ["spac_lru__draft-50%-64", "llama.cpp_--n-cpu-moe__draft-50%-64"]


class Played:
    """Replacement for running cells. Sweeps find `speeds`, and cells that run again are half as fast."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.jobs: dict[str, Job] = {}
        self.speeds = {"spac": {3: 5.0, 2: 7.0, 1: 6.0}, "llama.cpp": {3: 9.0, 2: 8.0, 1: 4.0}}
        monkeypatch.setattr(comparison, "run_cell", self.run_cell)
        monkeypatch.setattr(comparison.Comparison, "likelihoods", lambda self: {})

    def run_cell(self, job: Job, work: Path, key: str, reference: Path | None, _seconds: float) -> Result:
        self.jobs[key] = job
        job.write(work / f"{key}.job.json")
        speed = 2.0 if key.endswith("-again") else 4.0
        if key.startswith("threads"):
            speed = self.speeds["spac" if reference is None else "llama.cpp"].get(job.threads)
        runs = (
            [asdict(Run(8, 0.5, 0.6, s, [1, 2, 3, 4], 2)) for s in (9.0, 4 / speed, 4 / speed)]
            if speed
            else []
        )
        result = Result(runs=runs, error="" if speed else "failed: badly")
        result.write(work / f"{key}.json")
        return result


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> Played:
    return Played(monkeypatch)


def test_each_side_gets_its_best_number_of_threads(
    twin: tuple[Path, Path], tmp_path: Path, played: Played
) -> None:
    subject = comparison_of(twin, tmp_path, "--threads", "3", "2", "1")
    subject.run()
    assert subject.not_run == []
    sweep = played.jobs["threads-spac-2"]
    assert (len(sweep.prompts), sweep.n_predict, sweep.draft, sweep.ctx) == (4, 32, None, 160)
    assert len(set(map(tuple, sweep.prompts))) == 1
    assert played.jobs["threads-llama.cpp-1"].n_cpu_moe == played.jobs[PAIR[1]].n_cpu_moe == 3
    for key, job in played.jobs.items():
        if not key.startswith("threads"):
            assert job.threads == (2 if job.kind == "spac" else 3), key
    assert "spac 2 (3: 5.0, 2: 7.0, 1: 6.0 tokens/s); llama.cpp 3" in threads_of(subject)
    # A later call knows the speeds. A single number is not tried.
    for numbers, chosen in ((["3", "2", "1"], 2), (["3", "1"], 1), (["4"], 4)):
        played.jobs.clear()
        later = comparison_of(twin, tmp_path, "--threads", *numbers)
        later.run()
        assert not [key for key in played.jobs if key.startswith("threads")]
        assert later.threads("spac") == chosen


@pytest.mark.parametrize(("device", "threads"), [("CUDA0", 6), ("simulated", 8), ("cpu", 8)])
def test_without_a_number_both_sides_have_spacs_own(
    twin: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str, threads: int
) -> None:
    monkeypatch.setattr("bench.compare.comparison.physical_cores", lambda: 8)
    subject = comparison_of(twin, tmp_path, "--device", device)
    assert subject.args.threads == [threads]
    assert [subject.threads(side) for side in ("spac", "llama.cpp", "peer a server")] == [threads] * 3


def test_a_sweep_that_fails_is_named(twin: tuple[Path, Path], tmp_path: Path, played: Played) -> None:
    played.speeds["spac"] = {2: 1.0}
    subject = comparison_of(twin, tmp_path, "--threads", "3", "2", "--only", "spac lru, draft")
    subject.run()
    assert subject.not_run == ["threads-spac-3: failed: badly"]
    assert played.jobs[PAIR[0]].threads == 2
    assert "threads-llama.cpp-3" not in played.jobs  # none of its rows is requested
    late = comparison_of(twin, tmp_path / "late", "--threads", "3", "2", "--seconds", "5")
    late.run()
    assert f"threads-spac-3: {OUT_OF_TIME}" in late.not_run
    assert late.threads("spac") == 3


def test_tuned_rows_wait_for_what_they_are_tuned_to(
    twin: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever rows are chosen, llama.cpp's tuned row runs after spac's row and gets its VRAM."""
    ran: list[str] = []

    def run(self: comparison.Comparison, cell: Cell) -> None:
        if cell.engine.tuned and not any(key.startswith("spac") for key in ran):
            raise comparison.NotTunedError(comparison.NOT_TUNED)
        ran.append(cell.key)

    monkeypatch.setattr(comparison.Comparison, "_run", run)
    rows = "--only", "llama.cpp --n-cpu-moe, draft", "spac lru, no draft"
    subject = comparison_of(twin, tmp_path, "--brief", *rows)
    subject.run()
    assert subject.not_run == []
    assert [key.split("-")[0] for key in ran] == ["spac_lru__no_draft", "llama.cpp_", "llama.cpp_"]
    alone = comparison_of(twin, tmp_path / "alone", "--brief", "--only", "llama.cpp --n-cpu-moe, draft")
    ran.clear()
    alone.run()
    assert ran == []
    assert all(line.endswith(comparison.NOT_TUNED) for line in alone.not_run)
    assert alone.not_run


def test_the_first_pair_is_run_again_at_the_end(
    twin: tuple[Path, Path], tmp_path: Path, played: Played
) -> None:
    subject = comparison_of(twin, tmp_path)
    subject.run()
    assert list(played.jobs)[-2:] == [f"{key}-again" for key in PAIR]
    assert played.jobs[f"{PAIR[0]}-again"] == played.jobs[PAIR[0]]
    rows = rows_of(subject)
    assert {row["engine"]: row["repeated"] for row in rows if row["repeated"]} == {
        "spac lru, draft": 2.0, "llama.cpp --n-cpu-moe, draft": 2.0
    }  # fmt: skip
    halved = "4.0 → 2.0 tokens/s (-50.0%)"
    line = f"spac lru, draft {halved}; llama.cpp --n-cpu-moe, draft {halved}"
    assert repeats(rows) == [f"Repeated at the end: {line}."]
    played.jobs.clear()
    later = comparison_of(twin, tmp_path)
    later.run()
    assert played.jobs == {}
    assert set(later.again) == set(PAIR)


def test_the_first_pair_is_run_again_before_time_is_out(
    twin: tuple[Path, Path], tmp_path: Path, played: Played
) -> None:
    """Otherwise a grid that takes several calls would show its noise in the last call alone."""
    comparison_of(twin, tmp_path, "--seconds", "59").run()
    order = list(played.jobs)
    assert order.index(f"{PAIR[1]}-again") == order.index(f"{PAIR[0]}-again") + 1 < len(order) - 1

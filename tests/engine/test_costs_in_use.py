"""An engine corrects costs and keeps them, though not behind a pause. No fault of the cache stops it."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spac import _core, demo
from spac.costs.estimator import CostEstimator
from spac.engine import Engine, pauses
from spac.engine.costs_in_use import key_of, spares_hand_offs
from spac.engine.pauses import PAUSE_S, STEPS, Pauses
from spac.model.expected_speed import kept_costs
from spac.model.pair import ModelPair
from tests.engine.conftest import config


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of the cache, which belongs to the test alone."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "spac" / "measured"


def test_costs_of_other_cpu_kernels_are_anothers(target):
    with closing(ModelPair(config(target, device="cpu"), None)) as pair:
        ours = key_of(pair)
        try:
            _core.set_cpu_kernels(False)
            theirs = key_of(pair)
        finally:
            _core.set_cpu_kernels(True)
    assert (ours.path == theirs.path) == (not _core.trusted_cpu_kernels())


def generate(target: Path, n_tokens: int) -> tuple[Engine, CostEstimator]:
    with Engine(config(target, slots=0.3, ctx=256, scheduler="moe-spac")) as engine:
        estimator = engine.costs
        assert estimator is not None
        "".join(engine.generate("def f(x):", n_tokens))
    return engine, estimator


def test_an_engine_corrects_costs_and_keeps_them_for_the_next(target, folder):
    engine, first = generate(target, 101)  # The first token comes with the prompt.
    assert first.steps == 100
    (file,) = folder.glob("costs-*")
    assert not list(folder.glob(".*"))
    assert not [note for note in engine.notes if "costs" in note]
    kept, written = first.costs, file.read_bytes()
    _, second = generate(target, 1)
    assert second.costs.experts == kept.experts
    assert written == file.read_bytes()  # so few steps are not worth keeping


def test_without_a_writable_cache_an_engine_runs_and_says_so(target, folder):
    folder.parent.mkdir(parents=True)
    folder.write_text("a file")
    engine, estimator = generate(target, 81)
    assert estimator.steps == 80
    assert len([note for note in engine.notes if "measured costs are not kept" in note]) == 1


def test_without_the_split_the_time_of_a_token_is_kept(target, folder):
    on_cpu = config(target, device="cpu", ctx=256)
    for n_tokens, kept in ((20, False), (50, True)):  # so few steps are not worth keeping
        with Engine(on_cpu) as engine:
            assert engine.costs is None
            generation = engine.generate("def f(x):", n_tokens)
            "".join(generation)
        assert bool(list(folder.glob("costs-*"))) == kept
    found = kept_costs(target, "cpu")
    assert found is not None
    assert found.experts == ()
    assert 0 < found.verify(1) <= generation.stats.decode_s
    assert kept_costs(target, "CUDA0") is None
    folder.rename(folder.with_name("away"))
    folder.write_text("a file")
    with Engine(on_cpu) as engine:
        "".join(engine.generate("def f(x):", 50))
    assert not [note for note in engine.notes if "costs" in note]


@pytest.mark.parametrize(
    ("masks", "tried", "spared"),
    [("", True, True), ("", False, False), ("no-masks", True, False), ("masks", False, True)],
)
def test_where_the_device_reads_no_masks_no_hand_off_is_spared(monkeypatch, masks, tried, spared):
    """On such a device the CPU lists the resident experts, so every layer waits for the CPU."""
    monkeypatch.setenv("SPAC_FORM", masks)
    assert spares_hand_offs(SimpleNamespace(reads_masks=tried)) == spared
    assert spares_hand_offs(None)


# Nothing is learned from the times of the first steps behind a pause.


@given(gaps=st.lists(st.floats(0, 3 * PAUSE_S), max_size=40))
def test_steps_behind_a_pause_are_named(gaps):
    found, now, behind = Pauses(), 100.0, STEPS
    for i, gap in enumerate(gaps):
        now += gap + 0.25
        found.step(0.25, now)
        pause = i > 0 and gap > PAUSE_S + 1e-9
        if i > 0 and abs(gap - PAUSE_S) <= 1e-9:
            return  # on the border
        behind = 0 if pause else behind + 1
        assert found.settling == (behind < STEPS)


def test_costs_and_governor_learn_nothing_behind_a_pause(monkeypatch):
    monkeypatch.setattr(pauses, "PAUSE_S", 0.5)
    with Engine(config(slots="25%", draft=demo.DRAFT)) as engine:
        learned, observe = [], engine.governor.observe
        engine.governor.observe = lambda *given: (learned.append(given), observe(*given))
        counts = []
        for pause_s in (0, 0.6):
            time.sleep(pause_s)
            before = engine.costs.steps, len(learned)
            generation = engine.generate(demo.PROMPT, 24)
            text = "".join(generation)
            n_steps = generation.stats.steps
            counts.append((n_steps - engine.costs.steps + before[0], n_steps - len(learned) + before[1]))
            assert text
    assert counts[0][0] == 0
    assert counts[1][0] == STEPS
    assert counts[1][1] - counts[0][1] == STEPS

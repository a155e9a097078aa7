"""Nothing is learned from the times of the first steps behind a pause."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spac import demo
from spac.config import EngineConfig, SamplingConfig
from spac.engine import Engine, pauses
from spac.engine.pauses import PAUSE_S, STEPS, Pauses


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


@pytest.mark.parametrize("drafts", [False, True])
def test_costs_and_governor_learn_nothing_behind_a_pause(monkeypatch, drafts):
    monkeypatch.setattr(pauses, "PAUSE_S", 0.5)
    options = {"draft": demo.DRAFT} if drafts else {}
    config = EngineConfig(
        demo.TARGET, device="simulated", slots="25%", ctx=512, threads=1,
        sampling=SamplingConfig(temp=0.0, ignore_eos=True), **options,
    )  # fmt: skip
    with Engine(config) as engine:
        learned = []
        if engine.governor is not None:
            observe = engine.governor.observe
            engine.governor.observe = lambda *given: (learned.append(given), observe(*given))
        counts = []
        for _ in range(2):
            before = engine.costs.steps, len(learned)
            generation = engine.generate("def f(n):", 24)
            text = "".join(generation)
            n_steps = generation.stats.steps
            counts.append((n_steps - engine.costs.steps + before[0], n_steps - len(learned) + before[1]))
            assert text
            time.sleep(0.6)
    assert counts[0][0] == 0
    assert counts[1][0] == STEPS
    if learned:
        assert counts[1][1] - counts[0][1] == STEPS

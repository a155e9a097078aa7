"""Whether the scheduler works beside the steps is chosen by their times, in turns."""

from __future__ import annotations

import random

import pytest

from spac import demo, env
from spac.config import EngineConfig, SamplingConfig
from spac.engine import Engine
from spac.engine.trials import BLOCK, PAIRS, WARM, Trial, Trials

N = WARM + 2 * PAIRS * BLOCK


def tried(ratio: float, seed: int = 0, noise: float = 0.1, sizes: tuple[int, ...] = (1,)) -> Trial:
    """Return a trial with steps that take `ratio` of the time beside the scheduler, up to some noise."""
    rng, trial, now = random.Random(seed), Trial(), 100.0
    trial.observe(1, now)
    for i in range(N):
        assert trial.choice is None, i
        if rng.random() < 0.05:  # another prompt
            now += 3.0
            trial.pause()
            trial.observe(1, now)
        size = rng.choice(sizes)
        seconds = 0.01 * size * (ratio if trial.is_on else 1.0) * rng.uniform(1 - noise, 1 + noise)
        now += seconds * (20 if rng.random() < 0.01 else 1)
        trial.observe(size, now)
    return trial


def test_both_ways_have_their_turns() -> None:
    trial, ways = Trial(), []
    trial.observe(1, 0.0)
    for i in range(N):
        ways.append(trial.is_on)
        trial.observe(1, (i + 1) / 64)
    assert ways == [False] * WARM + ([False] * BLOCK + [True] * BLOCK) * PAIRS
    assert trial.choice is False, "a thread that gains nothing is not used"


@pytest.mark.parametrize("ratio", [0.7, 0.95, 1.05, 1.3])
@pytest.mark.parametrize("sizes", [(1,), (1, 3, 5)])
def test_the_faster_way_is_chosen(ratio: float, sizes: tuple[int, ...]) -> None:
    """A few steps take 20 times as long, as where another program has the CPU."""
    choices = [tried(ratio, seed, noise=0.03, sizes=sizes).choice for seed in range(40)]
    assert choices.count(ratio < 1) >= 39


def test_a_mechanism_is_told_when_it_is_switched() -> None:
    told: list[bool] = []
    trial = Trial(switch=told.append)
    assert told == []
    for i in range(N + 1):
        trial.observe(1, i / 64 if i % 2 else i / 64 + 1e-4)
    assert told == [True, False] * PAIRS
    Trial(True, switch=told.append)
    assert told.pop() is True
    Trial(False, switch=told.append)
    assert told == [True, False] * PAIRS


def test_trials_are_made_one_after_the_other() -> None:
    first, second = Trial(), Trial()
    trials, ways = Trials(None, first, second), []
    for i in range(2 * N + 2):
        ways.append((first.is_on, second.is_on))
        trials.observe(1, float(i))
    turns = [False] * WARM + ([False] * BLOCK + [True] * BLOCK) * PAIRS
    assert [way for way, _ in ways[1 : N + 1]] == turns
    assert [way for _, way in ways[N + 2 :]] == turns
    assert first.choice is not None
    assert second.choice is not None


@pytest.mark.parametrize("form", ["", "schedule-beside", "no-schedule-beside", "safe"])
def test_an_engine_chooses(monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    """The text is the same in each way. A form that says something about it needs no trial."""
    monkeypatch.setenv(env.FORM.name, form)
    config = EngineConfig(
        demo.TARGET, device="simulated", threads=1, ctx=512, slots="25%", state="off",
        sampling=SamplingConfig(temp=0.0, ignore_eos=True),
    )  # fmt: skip
    with Engine(config) as engine:
        begun = engine.events.beside
        assert (begun is None) == (form in ("no-schedule-beside", "safe"))
        text = "".join(engine.generate("def f(", N + 3))
        assert begun is None or begun.choice is not None
        if form:
            monkeypatch.setenv(env.FORM.name, "safe")
            with Engine(config) as other:
                assert "".join(other.generate("def f(", N + 3)) == text

"""A draft that has left the device comes back when it promises enough, and the text stays the same."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from time import sleep
from types import SimpleNamespace

import numpy as np
import pytest

from spac import _core
from spac.config import SamplingConfig
from spac.engine import draft_return, unused_draft
from spac.engine.draft_return import DraftOnCpu, DraftReturn
from spac.errors import InputError, OutOfMemoryError
from spac.governor import RooflineGovernor
from spac.model.pair import ModelPair
from tests.engine.tight_pair import pair_starter, tight_limit, used
from tests.governor.world import World, run

N = draft_return.TOKENS


class Draft:
    """A draft on the CPU whose agreement with the text the test sets."""

    def __init__(self):
        self.share, self.n_asked = 0.0, 0

    def agrees(self, tokens):
        self.n_asked += 1
        return np.random.default_rng(self.n_asked).random(N) < self.share

    def close(self):
        pass


@pytest.fixture(scope="module")
def governor():
    """Return a governor whose draft did not pay, in a world where plain steps took 10 ms."""
    world = World(lambda j: 0.05, draft=lambda n: 1e-3 * n, verify=lambda b: 9e-3 + 1e-3 * b, spikes=0)
    governor = RooflineGovernor(8)
    run(governor, world, 400)
    assert governor.in_force == 0
    return governor


def away(governor, draft, n_left=1, change_s=0.1):
    return DraftReturn(governor, lambda: draft, n_left, change_s)


SESSION = SimpleNamespace(tokens=np.zeros(4 * N, np.int32), has_images=False)


def steps_to_return(rule, n_steps, step_s=9e-3, session=SESSION):
    """Return the step after which the draft returns; None if it does not within `n_steps` steps."""
    step = SimpleNamespace(verify_ns=int(step_s * 1e9), sample_ns=0, tokens=[1])
    for i in range(n_steps):
        rule.observe(step)
        if rule.returns(session):
            return i + 1
    return None


@pytest.mark.parametrize(("share", "back"), [(0.9, True), (0.6, True), (0.05, False)])
def test_a_draft_returns_for_a_text_that_it_foretells(governor, share, back):
    draft = Draft()
    draft.share = share
    found = steps_to_return(away(governor, draft), 1500)
    assert found == (draft_return.HORIZON + N if back else None)  # Two trials, one after the other.
    assert draft.n_asked >= 2


def test_a_return_has_to_pay_for_the_changes(governor):
    draft = Draft()
    draft.share = 0.9
    assert steps_to_return(away(governor, draft, change_s=2.0), 1500) is None
    assert steps_to_return(away(governor, draft), 1500, step_s=3e-3) is None  # The slots brought more.


def test_one_good_trial_is_not_enough(governor):
    draft = Draft()
    rule = away(governor, draft)
    draft.share = 0.9
    assert steps_to_return(rule, draft_return.HORIZON) is None
    draft.share = 0.05
    assert steps_to_return(rule, 2 * N) is None
    assert draft.n_asked >= 2


def test_each_vain_return_doubles_the_wait(governor):
    draft = Draft()
    draft.share = 0.9
    assert steps_to_return(away(governor, draft, n_left=3), 4000) == 4 * draft_return.HORIZON + N


def test_trials_wait_for_a_text_and_take_little_time(governor, monkeypatch):
    draft = Draft()
    rule = away(governor, draft)
    steps_to_return(rule, draft_return.HORIZON - 8)
    rule.begin()
    steps_to_return(rule, N - 1)
    assert draft.n_asked == 0  # The new text is too short.
    steps_to_return(rule, 1, session=SimpleNamespace(tokens=SESSION.tokens, has_images=True))
    assert draft.n_asked == 0
    clock = iter(range(100))
    monkeypatch.setattr(draft_return, "perf_counter", lambda: next(clock))  # Each trial takes a second.
    n_steps = 4000
    steps_to_return(rule, n_steps)
    assert 0 < rule.trial_s <= 1 + draft_return.SHARE * 9e-3 * (n_steps + draft_return.HORIZON + N)


# With an engine

TRIAL = 8


@pytest.fixture
def engine_with(tiny_model, monkeypatch):
    """Start engines whose drafts return at the second trial, whatever they promise."""
    for name, value in {"TOKENS": TRIAL, "HORIZON": TRIAL, "WORTH": 0.0, "PAYBACK": -1e9}.items():
        monkeypatch.setattr(draft_return, name, value)

    yield pair_starter(tiny_model)
    _core.set_memory_limit("simulated", 0)


@pytest.fixture
def tight(engine_with):
    """Return a limit under which not all experts fit beside the draft."""
    return tight_limit(engine_with)


def text_of(engine, n_tokens, prompt="def f("):
    return "".join(engine.generate(prompt, n_tokens))


def wait_for(condition):
    """Wait for a move. With several sequences, another thread makes it."""
    for _ in range(1000):
        if condition():
            return
        sleep(0.01)
    raise AssertionError("it did not come true")


def leave(engine, monkeypatch):
    """Make the draft of an engine leave."""
    with monkeypatch.context() as patch:
        patch.setattr(unused_draft, "IDLE_STEPS", 6)
        patch.setattr(RooflineGovernor, "in_force", 0)
        text = text_of(engine, 10)
        wait_for(lambda: engine._pair.draft is None)
    return text


def test_the_draft_comes_back_within_an_answer(engine_with, tight, monkeypatch):
    with engine_with(draft=None, draft_max=None) as engine:
        wanted = text_of(engine, 10), text_of(engine, 60), text_of(engine, 20, "x = ")
    with engine_with(vram_limit=tight) as engine:
        n_slots = engine.experts.slots.n_slots
        left = leave(engine, monkeypatch)
        assert engine.experts.slots.n_slots > n_slots
        back = text_of(engine, 60)  # The draft returns while this is generated.
        assert engine._pair.draft is not None
        assert engine.governor is not None
        assert any(note.startswith("the draft is back") for note in engine.notes)
        assert engine.experts.slots.n_slots <= n_slots
        assert used() <= tight
        assert engine.setting(SamplingConfig()).draft is not None
        engine.fix_draft_length(2)
        generation = engine.generate("x = ", 20)
        assert (left, back, "".join(generation)) == wanted
        assert generation.stats.drafted_tokens > 0


def test_a_draft_that_cannot_be_loaded_stays_away(engine_with, tight, monkeypatch):
    def refuse(_pair):
        raise OutOfMemoryError("no room")

    monkeypatch.setattr(ModelPair, "return_draft", refuse)
    with engine_with(vram_limit=tight) as engine:
        leave(engine, monkeypatch)
        n_slots = engine.experts.slots.n_slots
        text_of(engine, 60)
        assert "nothing is drafted: no room" in engine.notes[-1]
        assert engine.experts.slots.n_slots == n_slots
        assert engine.governor is None
        text_of(engine, 30)


def test_agreement_is_that_of_real_drafts(engine_with, tiny_model):
    """A draft that is the target agrees with all of its text, and another model does not."""
    shares = {}
    for name, draft in {"itself": tiny_model("qwen3"), "another": tiny_model("qwen3", n_layer=1)}.items():
        with engine_with(target=tiny_model("qwen3"), draft=draft, device="cpu", vram_limit=None) as engine:
            text_of(engine, TRIAL + 2)  # With the prompt, it fits into the context of the trial.
            on_cpu = DraftOnCpu(engine.config, engine._pair)
            shares[name] = on_cpu.agrees(engine.session.tokens).mean()
            on_cpu.close()
    assert shares["itself"] == 1.0
    assert shares["another"] < 1.0


def test_drafts_resume_only_after_they_were_dropped(engine_with):
    with engine_with() as engine:
        text_of(engine, 2)
        with pytest.raises(InputError, match="not dropped"):
            engine.session.resume_drafts(engine._pair.draft_context.pointer)


def test_the_draft_of_several_leaves_and_comes_back(engine_with, tight, monkeypatch):
    with engine_with(draft=None, draft_max=None) as engine:
        wanted = text_of(engine, 10), text_of(engine, 60)
    with engine_with(vram_limit=tight, parallel=2) as engine:
        n_slots = engine.experts.slots.n_slots
        left = leave(engine, monkeypatch)
        wait_for(lambda: engine.experts.slots.n_slots > n_slots)
        assert engine.batch.session.draft_max == 0
        back = text_of(engine, 60)  # The draft returns while this is generated.
        wait_for(lambda: any(note.startswith("the draft is back") for note in engine.notes))
        assert engine.experts.slots.n_slots <= n_slots
        assert used() <= tight
        assert (left, back) == wanted
        engine.fix_draft_length(2)
        made = [engine.generate(prompt, 20) for prompt in ("x = ", "y = ")]
        with ThreadPoolExecutor(2) as pool:
            list(pool.map("".join, made))
        assert all(each.stats.drafted_tokens > 0 for each in made)

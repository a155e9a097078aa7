"""These tests cover the choice of the confidence below which drafts stop."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import numpy as np
import pytest

from spac.config import EngineConfig, SamplingConfig
from spac.demo import DRAFT, PROMPT, TARGET
from spac.engine import Engine
from spac.errors import InputError
from spac.governor import DraftLengthController, RooflineGovernor
from spac.governor.confidence import LOWER, Confidences
from spac.governor.model import Costs, curve

LONGEST = 12


class Text:
    """A text of easy and hard tokens, with the seconds of its steps."""

    def __init__(
        self, easy: float, accept: tuple[float, float], token_s: float, verify_s: float, seed: int = 1
    ):
        self.easy, self.accept, self.token_s, self.verify_s = easy, accept, token_s, verify_s
        self.rng = np.random.default_rng(seed)

    def step(self, k: int, p_min: float):
        """Return (confidences, drafted, accepted, seconds of drafting, seconds) of one step."""
        rng, shown, n, accepted, right = self.rng, [], 0, 0, True
        while n < k:
            easy = rng.random() < self.easy
            shown.append(float(rng.uniform(0.8, 1.0) if easy else rng.uniform(0.1, 0.5)))
            if shown[-1] < p_min:
                break
            n += 1
            right = right and rng.random() < self.accept[not easy]
            accepted += right
        draft_s = 1e-4 + self.token_s * len(shown) if k else 0.0
        return shown, n, accepted, draft_s, draft_s + 0.02 + self.verify_s * (n + 1)

    def theta(self, k: int, p_min: float, steps: int = 4000) -> float:
        tokens = seconds = 0.0
        for _ in range(steps):
            _, _, accepted, _, step_s = self.step(k, p_min)
            tokens, seconds = tokens + accepted + 1, seconds + step_s
        return tokens / seconds


def drive(governor, text: Text, steps: int) -> float:
    """Let the governor run the text. Return tokens per second of the second half."""
    tokens = seconds = 0.0
    for i in range(steps):
        k, p_min = governor.choose(10**6), governor.p_min
        shown, n, accepted, draft_s, step_s = text.step(k, p_min or 0.0)
        if p_min is not None:
            governor.confidences(shown)
        governor.observe(n, accepted, draft_s, step_s)
        if i >= steps // 2:
            tokens, seconds = tokens + accepted + 1, seconds + step_s
    return tokens / seconds


WORLDS = {
    "dear drafts": (0.7, (0.95, 0.1), 0.004, 0.002),
    "cheap drafts": (0.5, (0.9, 0.6), 0.0002, 0.0005),
    "no doubt": (1.0, (0.9, 0.9), 0.002, 0.001),
    "dear verification": (0.8, (0.97, 0.2), 0.001, 0.006),
}


@pytest.mark.parametrize("world", WORLDS)
def test_the_choice_comes_near_the_best_pair_of_length_and_threshold(world):
    text = Text(*WORLDS[world])
    fixed = {
        (k, t): text.theta(k, t, 600) for k, t in itertools.product((0, 1, 2, 4, 8, 12), (0.0, 0.3, 0.6, 0.9))
    }
    best, plain = max(fixed.values()), max(value for (_, t), value in fixed.items() if t == 0)
    governor = RooflineGovernor(LONGEST, chooses_p_min=True, clock=lambda: 0.0)
    got = drive(governor, text, 1500)
    assert got > 0.94 * best, (got, fixed)
    if best > 1.1 * plain:
        assert governor._threshold > 0
        assert got > plain


def test_the_chain_foretells_drafts_of_every_threshold():
    text, learned = Text(0.7, (0.95, 0.3), 0.002, 0.001), Confidences(LONGEST)
    for _ in range(400):
        shown, n, accepted, _, _ = text.step(LONGEST, 0.0)
        learned.observe(shown, n, accepted)
    accept, go_on = learned.rates()
    verify = 0.02 + text.verify_s * np.arange(1, LONGEST + 2)
    costs = Costs(1e-4, text.token_s, verify, np.zeros(LONGEST + 1), 0.0, tries=True)
    for place, k in ((0, 4), (6, 4), (6, 12)):
        foretold = curve(accept[place], go_on[place], costs).theta[k]
        assert foretold == pytest.approx(text.theta(k, learned.thresholds[place]), rel=0.06)


def test_a_stop_hides_only_what_follows_it():
    learned = Confidences(4)
    learned.observe([0.95, 0.95, 0.2], 2, 1)
    assert learned._trials[9] == pytest.approx(1 + (1 - 1 / 256))
    assert not learned._trials[2]  # the token before which the draft stopped was not tried
    assert learned._next[1, 9, 9] == 1  # behind an accepted token
    assert learned._next[0, 9, 2] == 1  # behind a rejected one
    assert learned.cut(5, [0.95, 0.4, 0.9], 3) == 1
    assert learned.cut(4, [0.95, 0.4, 0.9], 3) == 3
    learned.observe([], 0, 0)
    assert learned.n_drafts == 1


def test_now_and_then_a_draft_goes_on_below_the_threshold():
    learned, seen = Confidences(2), []
    for _ in range(16 * LOWER):
        seen.append(learned.lower(6))
        learned.observe([0.9], 1, 1)
    assert seen.count(0.6) == 16 * (LOWER - 1)
    assert sorted({*seen}) == [0.0, 0.4, 0.6]


def test_the_controller_sets_the_threshold_of_a_session():
    steps, set_to = iter([[0.9], [0.3]]), []
    session = SimpleNamespace(
        draft_max=4, set_draft_length=lambda _k: None, set_p_min=set_to.append,
        step=lambda: SimpleNamespace(
            n_drafted=1, n_accepted=1, n_verified=2, draft_ns=1000, confidences=next(steps), layer_costs=()
        ),
    )  # fmt: skip
    governor = RooflineGovernor(4, chooses_p_min=True)
    governor._queue = [1, 1]  # the lengths of the first steps
    controller = DraftLengthController(governor, session)
    controller.step(None)
    assert set_to == [0.0]
    governor._threshold = 7
    controller.step(None)
    assert set_to == [0.0, 0.7]
    assert governor._confidences.n_drafts == 2


@pytest.mark.parametrize(("temp", "draft_type"), [(0.0, None), (0.8, None), (0.0, "self-resident")])
def test_the_text_is_that_without_a_threshold(temp, draft_type):
    texts, stopped = [], 0
    for p_min in ("auto", 0.0):
        config = EngineConfig(
            target=TARGET, draft=None if draft_type else DRAFT, draft_type=draft_type, device="simulated",
            threads=1, ctx=256, slots=0.4, state="off", draft_p_min=p_min,
            sampling=SamplingConfig(temp=temp, seed=3, ignore_eos=True),
        )  # fmt: skip
        lengths: list[int] = []
        with Engine(config) as engine:
            if p_min == "auto":
                engine.governor._threshold = 8
                engine.events.after_step.append(
                    lambda step, lengths=lengths: lengths.append(len(step.confidences) - step.n_drafted)
                )
            texts.append("".join(engine.generate(PROMPT, 40)))
        stopped += sum(lengths)
    assert texts[0] == texts[1]
    assert stopped > 0  # so many drafts stopped early


@pytest.mark.parametrize(
    ("options", "chooses", "fixed"),
    [
        ({}, False, 0.0),
        ({"draft_p_min": "auto"}, True, 0.0),
        ({"draft_p_min": 0.4}, False, 0.4),
        ({"draft_p_min": "0.4"}, False, 0.4),
        ({"draft_p_min": "auto", "draft_length": 4}, False, 0.0),
        ({"draft_p_min": "auto", "deterministic": True}, False, 0.0),
        ({"draft_p_min": "auto", "parallel": 2}, False, 0.0),
        ({"draft_p_min": "auto", "draft_type": "self", "draft": None}, True, 0.0),
        ({"draft_p_min": "auto", "draft_type": "ngram-simple", "draft": None}, False, 0.0),
    ],
)
def test_who_chooses(options, chooses, fixed):
    config = EngineConfig(target="x.gguf", **{"draft": "d.gguf", **options})
    assert (config.chooses_p_min, config.fixed_p_min) == (chooses, fixed)


@pytest.mark.parametrize("value", [-0.1, 1.5, "much", float("nan"), True])
def test_a_threshold_that_is_none_is_refused(value):
    with pytest.raises(InputError, match="'auto', or a number from 0 to 1"):
        EngineConfig(target="x.gguf", draft_p_min=value)

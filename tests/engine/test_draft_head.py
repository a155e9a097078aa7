"""The short head of a draft is used where it pays, and changes no text."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from spac import _core
from spac.config import EngineConfig, SamplingConfig
from spac.engine import Engine
from spac.engine.draft_head import BLOCK, EVERY, TRIAL, DraftHead
from spac.errors import InputError


class Head:
    """A short head that counts what the test says."""

    def __init__(self):
        self.on, self.n_noted, self.n_learned = False, 0, 0

    def set_on(self, on):
        self.on = on


def run(rule, head, n_steps, *, short_s, unknown=0.0, accepted=3, verify_s=4e-3):
    """Run steps of 4 drafted tokens, which take 1 ms each with the whole head. Return the heads in use."""
    used = []
    for _ in range(n_steps):
        used.append(head.on)
        head.n_noted += accepted + 1
        head.n_learned += unknown * (accepted + 1)
        ns = int(4e9 * (short_s if head.on else 1e-3))
        rule.observe(SimpleNamespace(
            n_drafted=4, n_accepted=accepted, draft_ns=ns, verify_ns=int(verify_s * 1e9), sample_ns=0,
            confidences=(),
        ))  # fmt: skip
    return used


@pytest.mark.parametrize(
    ("short_s", "unknown", "on"),
    [(0.7e-3, 0.0, True), (0.7e-3, 0.02, True), (0.7e-3, 0.2, False), (1.1e-3, 0.0, False)],
    ids=["faster", "few unknown", "many unknown", "slower"],
)
def test_it_is_used_where_it_saves_more_than_it_loses(short_s, unknown, on):
    head = Head()
    rule = DraftHead(head)
    used = run(rule, head, EVERY, short_s=short_s, unknown=unknown)
    assert used[:TRIAL] == ([False] * BLOCK + [True] * BLOCK) * (TRIAL // (2 * BLOCK))
    assert used[TRIAL:] == [on] * (EVERY - TRIAL)


def test_the_choice_follows_the_text_without_flapping():
    head = Head()
    rule = DraftHead(head)
    # The gain is 0.15, and the loss 1.5 times the share of unknown tokens.
    chosen = [
        run(rule, head, EVERY, short_s=0.7e-3, unknown=unknown)[-1]
        for unknown in (0.095, 0.02, 0.095, 0.2, 0.095)
    ]
    assert chosen == [False, True, True, False, False]


def test_prompts_and_steps_without_drafts_do_not_count():
    head = Head()
    rule = DraftHead(head)
    run(rule, head, TRIAL - 1, short_s=0.7e-3)
    head.n_noted += 1000
    head.n_learned += 1000  # a prompt of unknown tokens
    rule.begin()
    before = head.on
    rule.observe(
        SimpleNamespace(n_drafted=0, n_accepted=0, draft_ns=0, verify_ns=1, sample_ns=0, confidences=())
    )
    assert head.on == before
    assert run(rule, head, 4, short_s=0.7e-3)[-1]


@pytest.fixture
def engine_with(tiny_model, monkeypatch):
    """Start engines with a short head of 64 of the 272 tokens."""
    monkeypatch.setenv("SPAC_DRAFT_HEAD", "64")

    def start(**options):
        defaults = {
            "target": tiny_model("qwen3moe"), "draft": tiny_model("qwen3"), "draft_length": 3,
            "device": "simulated", "slots": 4, "threads": 1, "ctx": 128,
            "sampling": SamplingConfig(temp=0.0, seed=1, ignore_eos=True),
        }  # fmt: skip
        return Engine(EngineConfig(**{**defaults, **options}))

    return start


@pytest.mark.parametrize("temp", [0.0, 1.0])
def test_the_text_is_the_same(engine_with, monkeypatch, temp):
    sampling = SamplingConfig(temp=temp, seed=1, ignore_eos=True)
    texts, accepted = [], []
    for rows in ("0", "64"):
        monkeypatch.setenv("SPAC_DRAFT_HEAD", rows)
        with engine_with(sampling=sampling) as engine:
            head = engine._pair.draft_head
            assert (head is None) == (rows == "0")
            if head is not None:
                head.set_on(True)
                monkeypatch.setattr(engine, "_head", None)  # It stays on.
            generation = engine.generate("def f(x):", 60)
            texts.append("".join(generation))
            accepted.append(generation.stats.accepted_tokens)
            if head is not None:
                assert head.on
                assert head.n_noted >= 60
                assert head.n_learned > 0
    assert texts[0] == texts[1]


def test_the_engine_tries_both_heads(engine_with):
    with engine_with(ctx=256) as engine:
        seen = []
        engine.events.after_step.append(lambda _step: seen.append(engine._pair.draft_head.on))
        "".join(engine.generate("def f(x):", TRIAL * 2))
        assert {*seen[:TRIAL]} == {False, True}


@pytest.mark.parametrize("options", [{"device": "cpu"}, {"deterministic": True}], ids=["cpu", "equal runs"])
def test_some_drafts_keep_the_whole_head(engine_with, options):
    with engine_with(**options) as engine:
        assert engine._pair.draft_head is None


def test_too_few_tokens_are_refused(engine_with, monkeypatch):
    monkeypatch.setenv("SPAC_DRAFT_HEAD", "3")
    with pytest.raises(InputError, match="SPAC_DRAFT_HEAD: 3 tokens are too few"):
        engine_with()
    assert _core.ShortHead(8).n_rows == 0


def test_several_sequences_use_it(engine_with, tiny_model, monkeypatch):
    """A draft that is the target guesses right unless the head lacks a token, with any number of rows."""
    monkeypatch.setenv("SPAC_DRAFT_HEAD", "128")
    target, accepted = tiny_model("qwen3moe"), []
    for n in (1, 3):
        with engine_with(target=target, draft=target, parallel=n, ctx=512) as engine:
            head = engine._pair.draft_head
            head.set_on(True)
            monkeypatch.setattr(engine, "_head", None)  # It stays on.
            with ThreadPoolExecutor(n) as pool:
                made = list(
                    pool.map(lambda prompt: read(engine, prompt), ("def f(x):", "The sea", "1, 2, 3"))
                )
            assert head.on
            assert head.n_noted >= 3 * 40
            accepted.append(sum(each.accepted_tokens for each in made))
    assert accepted[1] >= 0.8 * accepted[0] > 20


def read(engine, prompt):
    generation = engine.generate(prompt, 40)
    "".join(generation)
    return generation.stats

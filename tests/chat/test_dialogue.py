"""A dialogue has its answers in one context. These tests cover what it keeps, what it forgets, and what a
fault or a stop leaves."""

from __future__ import annotations

import pytest

from spac import demo
from spac.chat.conversation import Conversation, Exchange
from spac.chat.dialogue import Dialogue
from spac.config import EngineConfig, SamplingConfig
from spac.engine import Engine
from spac.engine.chat_format import ChatFormat
from spac.errors import InputError
from tests.chat.conftest import says


@pytest.fixture(scope="module")
def engine():
    config = EngineConfig(
        demo.TARGET, demo.DRAFT, draft_length=8, device="simulated", threads=1, ctx=256,
        sampling=SamplingConfig(temp=0),
    )  # fmt: skip
    with Engine(config) as engine:
        yield engine


@pytest.fixture
def dialogue(engine):
    engine.set_scheduler("lru")
    engine.fix_draft_length(None)
    engine.events.after_step.clear()
    return Dialogue(engine, ChatFormat(engine.target), Conversation(), 24)


def said(dialogue, text):
    return "".join(piece.text for piece in dialogue.answer(text))


def test_what_has_been_evaluated_is_kept(dialogue):
    first = said(dialogue, "import os and sys")
    assert dialogue.conversation.exchanges == [Exchange("import os and sys", first)]
    said(dialogue, "more")
    stats = dialogue.generation.stats
    assert stats.prompt_tokens > 30
    assert stats.prefilled_tokens < 20  # the new message, and the text at the joints that tokenizes otherwise


def test_the_plain_template_ends_where_the_user_would_speak(tiny_model):
    config = EngineConfig(tiny_model("qwen3moe", n_vocab=288), device="cpu", threads=1, ctx=256)
    with Engine(config) as engine:
        dialogue = Dialogue(engine, ChatFormat(engine.target), Conversation(), 24)
        dialogue._sampling = SamplingConfig(temp=0, grammar=says("Hi\nUser: more"))
        assert said(dialogue, "hello") == "Hi"
        assert dialogue.generation.reason == "stop"


def test_the_status_tells_of_reading_first(dialogue):
    assert dialogue.status() == ""
    shown, note = [], dialogue._note_reading
    dialogue._note_reading = lambda *counts: (note(*counts), shown.append(dialogue.status()))
    said(dialogue, "def walk(top): ...")
    assert shown[0].startswith("reading: 0 of ")
    line = dialogue.status()
    for part in ("tokens/s", "acceptance", "hit rate", "simulated device", "CPU", "context"):
        assert part in line
    assert "\n" not in line


def test_the_oldest_exchanges_are_forgotten_and_not_lost(dialogue):
    """The rest is read again, so what is forgotten makes room for more than one answer."""
    dialogue.conversation.system = "# Python"
    forgotten, read_again = [0], 0
    for turn in range(24):
        said(dialogue, f"def f{turn}(x): write this function please")
        forgotten.append(dialogue.n_forgotten)
        stats = dialogue.generation.stats
        assert stats.prompt_tokens + stats.generated_tokens <= stats.context
        assert not dialogue.ended_by_context
        if forgotten[-1] > forgotten[-2]:
            read_again += 1
            assert 2 * stats.prompt_tokens <= stats.context
    assert forgotten == sorted(forgotten)
    assert 0 < read_again < forgotten[-1] < 24
    assert len(dialogue.conversation.exchanges) == 24
    messages = dialogue.conversation.messages(skip=dialogue.n_forgotten)
    assert messages[0] == {"role": "system", "content": "# Python"}


def test_a_message_that_does_not_fit(dialogue):
    said(dialogue, "short")
    before = list(dialogue.conversation.exchanges)
    with pytest.raises(InputError, match="the context holds 256"):
        dialogue.answer("word " * 400)
    assert dialogue.conversation.exchanges == before
    assert said(dialogue, "short again")


def test_an_answer_that_the_context_ends(engine):
    engine.events.after_step.clear()
    sampling = SamplingConfig(temp=0, ignore_eos=True)
    endless = Dialogue(engine, ChatFormat(engine.target, "{{ messages[-1].content }}"), Conversation(), None)
    endless._sampling = sampling
    assert said(endless, "x = ")
    assert endless.ended_by_context
    assert "context 25" in endless.status()


def test_a_fault_keeps_what_was_said(dialogue, engine):
    first = said(dialogue, "import os")
    steps = []

    def fail(step):
        steps.append(step)
        if len(steps) == 3:
            raise RuntimeError("a listener's fault")

    engine.events.after_step.append(fail)
    pieces = []
    with pytest.raises(RuntimeError, match="fault"):
        pieces.extend(dialogue.answer("import sys and json and re and time"))
    engine.events.after_step.clear()
    kept = dialogue.conversation.exchanges
    assert kept[0] == Exchange("import os", first)
    assert len(kept) == 2
    assert kept[1].assistant
    assert said(dialogue, "go on")
    assert len(kept) == 3


def test_a_stop_keeps_what_came(dialogue):
    pieces = dialogue.answer("class A:")
    first = next(pieces).text
    dialogue.generation.cancel()
    rest = "".join(piece.text for piece in pieces)
    assert dialogue.generation.reason == "cancelled"
    assert dialogue.conversation.exchanges == [Exchange("class A:", first + rest)]
    pieces = dialogue.answer("class B:")
    dialogue.generation.cancel()  # before the answer began
    assert list(pieces) == []
    assert not dialogue.answered
    assert len(dialogue.conversation.exchanges) == 1


@pytest.mark.parametrize("scheduler", ["moe-spac", "ewma", "static", "none"])
def test_another_scheduler_changes_no_word(dialogue, engine, scheduler):
    text = said(dialogue, "def walk(top):")
    dialogue.begin(Conversation())
    engine.set_scheduler(scheduler)
    assert said(dialogue, "def walk(top):") == text
    assert dialogue.generation.stats.scheduler == scheduler


def test_another_draft_length(dialogue):
    for length, drafts in ((None, True), (0, False), (None, True)):
        dialogue.engine.fix_draft_length(length)
        said(dialogue, "def walk(top):")
        assert (dialogue.generation.stats.drafted_tokens > 0) == drafts
    for wrong in (-1, 9):
        with pytest.raises(InputError, match="0 to 8"):
            dialogue.engine.fix_draft_length(wrong)

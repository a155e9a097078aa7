"""These tests cover models that reason before they answer, with and without drafts.

The chat keeps the reasoning apart, limits it, turns it off and remembers it.
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import cache

import pytest

from spac.chat.commands import run_command
from spac.chat.conversation import Conversation, Exchange
from spac.chat.dialogue import Dialogue
from spac.chat.options import DEFAULTS, ChatOptions
from spac.config import EngineConfig, SamplingConfig
from spac.engine import Engine
from spac.engine.chat_format import ChatFormat
from spac.errors import InputError
from tests.chat.conftest import KEEPS, OPENS, TEMPLATE, says
from tests.chat.templates import CHANNELS, THINKING

# No merge of the tokenizer shortens these texts, so a model says them in the tokens in which they are read.
REASONED = {
    THINKING: "<think>\nIs it so?\n</think>\n\nYup, it is",
    CHANNELS: "<|channel|>analysis<|message|>Is it so?<|end|>"
    "<|start|>assistant<|channel|>final<|message|>Yup, it is",
}


@pytest.fixture(scope="module")
def engine(templated):
    """Yield `engine(THINKING)`, which takes `drafts=("ngram-simple",)` too. Each engine is made once."""
    with ExitStack() as made:

        @cache
        def make(template=THINKING, drafts=()):
            draft = templated(template, "qwen3") if "draft-simple" in drafts else None
            config = EngineConfig(
                templated(template), draft, draft_type=drafts or None, device="simulated", slots=4, threads=1,
                ctx=512, draft_length=4 if drafts else None, sampling=SamplingConfig(temp=0),
            )  # fmt: skip
            return made.enter_context(Engine(config))

        yield make


def dialogue(engine, grammar=None, *, n=200, options=DEFAULTS, bias=()):
    """Return a dialogue in which the model says what the grammar allows."""
    made = Dialogue(engine, ChatFormat(engine.target), Conversation(), n, options)
    made._sampling = SamplingConfig(temp=0, grammar=grammar or "", logit_bias=dict(bias))
    return made


def options(**given):
    return ChatOptions(**{**vars(DEFAULTS), **given})


def said(dialogue, text="hello"):
    """Return the reasoning and the text that an answer shows."""
    pieces = list(dialogue.answer(text))
    assert all(piece.text for piece in pieces)
    return tuple("".join(each.text for each in pieces if each.is_reasoning == kind) for kind in (True, False))


def unending(engine):
    """Return a bias against the token that ends the reasoning."""
    return [(int(engine.tokenize("</think>")[-1]), -50.0)]


@pytest.mark.parametrize("drafts", [(), ("draft-simple",), ("ngram-simple",)])
@pytest.mark.parametrize("template", [THINKING, CHANNELS])
def test_reasoning_is_kept_apart(engine, template, drafts):
    talk = dialogue(engine(template, drafts), says(REASONED[template]))
    reasoning, answer = said(talk)
    assert (reasoning.strip(), answer) == ("Is it so?", "Yup, it is")
    assert talk.conversation.exchanges == [Exchange("hello", "Yup, it is", "Is it so?")]
    assert talk.generation.reason == "stop"
    assert (talk.ending, talk.answered) == ("", True)
    if "draft-simple" in drafts:
        assert talk.generation.stats.drafted_tokens > 0


def test_an_answer_without_reasoning(engine):
    talk = dialogue(engine(), says("Yup, it is"))
    assert said(talk) == ("", "Yup, it is")
    assert talk.conversation.exchanges == [Exchange("hello", "Yup, it is")]
    # The library knows some families by their source. This one may spell the end of its answers.
    talk = dialogue(engine(THINKING + "{# laguna_glm_thinking #}"), says("Hi</assistant> more"))
    assert said(talk) == ("", "Hi")
    # A grammar of the user holds from the first token on, also where the template's format begins otherwise.
    assert said(dialogue(engine(CHANNELS), says("plain words"))) == ("", "plain words")


def test_pieces_come_as_they_are_said(engine, monkeypatch):
    monkeypatch.setattr("spac.engine.chat_format.READING_SHARE", 1.0)
    talk = dialogue(engine(), says(REASONED[THINKING]))
    kinds, states = [], []
    for piece in talk.answer("hello"):
        kinds.append(piece.is_reasoning)
        states.append(talk.status().startswith("reasoning · "))
    assert kinds == sorted(kinds, reverse=True)
    assert len(kinds) > 10
    assert states == kinds  # the status shows the current part
    assert not talk.status().startswith("reasoning")


# Limits

ENDLESS = 'root ::= <think> "a"{0,400} </think> "Hi"'


@pytest.mark.parametrize("drafts", [(), ("draft-simple",), ("ngram-simple",)])
@pytest.mark.parametrize("budget", [0, 7])
def test_a_budget_ends_reasoning(engine, budget, drafts):
    """The model would reason for long. The text that ends its reasoning is not part of it."""
    at = engine(THINKING, drafts)
    assert said(dialogue(at, ENDLESS, n=100, bias=unending(at))) == ("a" * 99, "")
    talk = dialogue(at, ENDLESS, n=100, bias=unending(at), options=options(reasoning_budget=budget))
    assert said(talk) == ("a" * budget, "Hi")


def test_a_budget_of_reasoning_that_the_prompt_begins(engine):
    at, grammar = engine(OPENS), ENDLESS.replace("<think>", "")
    assert said(dialogue(at, grammar, n=100, bias=unending(at))) == ("a" * 100, "")
    talk = dialogue(at, grammar, n=100, bias=unending(at), options=options(reasoning_budget=3))
    reasoning, answer = said(talk)
    assert answer == "Hi"
    assert reasoning.count("a") <= 3


def test_a_budget_of_channels(engine):
    at = engine(CHANNELS)
    grammar = (
        'root ::= <|channel|> "analysis" <|message|> "a"{1,400} <|end|> '
        '<|start|> "assistant" <|channel|> "final" <|message|> "Hi"'
    )
    bias = [(int(at.tokenize("<|end|>")[-1]), -50.0)]
    talk = dialogue(at, grammar, n=100, bias=bias, options=options(reasoning_budget=5))
    assert said(talk) == ("aaaaa", "Hi")


def test_reasoning_off(engine):
    at = engine()
    prompts = []
    for options_ in (DEFAULTS, options(reasoning=False), options(variables={"enable_thinking": False})):
        talk = dialogue(at, says("Hi"), options=options_)
        assert said(talk) == ("", "Hi")
        assert talk.notes == []
        prompts.append(talk.generation.stats.prompt_tokens)
    assert prompts[0] < prompts[1] == prompts[2]  # the prompt has an empty block of reasoning
    assert "reasoning on" in run_command(talk, "/reasoning on")
    said(talk)
    assert len(talk.conversation.exchanges) == 2
    talk.begin(Conversation())
    said(talk)
    assert talk.generation.stats.prompt_tokens == prompts[0]


def test_a_template_that_cannot_do_without(engine):
    talk = dialogue(engine(CHANNELS), says(REASONED[CHANNELS]))
    assert talk.notes == []
    answered = run_command(talk, "/reasoning off")
    assert answered.startswith("reasoning off; the chat template has no way")
    assert "--reasoning-budget 0" in answered
    [note] = talk.notes
    assert note in answered
    assert said(talk) == ("Is it so?", "Yup, it is")
    [note] = dialogue(engine(TEMPLATE), options=options(reasoning=False)).notes
    assert "budget" not in note  # a model that is not known to reason has no budget


@pytest.mark.parametrize("line", ["/reasoning maybe", "/reasoning On"])
def test_what_is_neither_on_nor_off(engine, line):
    with pytest.raises(InputError, match="on or off"):
        run_command(dialogue(engine()), line)
    with pytest.raises(InputError, match="enable_thinking is true or false"):
        dialogue(engine(), options=options(variables={"enable_thinking": "no"}))


# What is kept


@pytest.mark.parametrize(("template", "kept"), [(THINKING, False), (KEEPS, True)])
def test_the_template_decides_what_the_model_sees_again(engine, template, kept, monkeypatch):
    talk = dialogue(engine(template), says(REASONED[THINKING]))
    said(talk)
    seen, tokenize = [], talk.engine.tokenize
    monkeypatch.setattr(talk.engine, "tokenize", lambda text: (seen.append(text), tokenize(text))[1])
    said(talk, "and now")
    [prompt] = seen
    assert ("Is it so?" in prompt) == kept
    assert prompt.count("Yup, it is") == 1
    stats = talk.generation.stats
    assert stats.prefilled_tokens < stats.prompt_tokens - len(tokenize("<|im_start|>user\nhello"))
    if kept:  # the answer is not read again either
        added = len(tokenize("<|im_end|>\n<|im_start|>user\nand now<|im_end|>\n<|im_start|>assistant\n"))
        assert stats.prefilled_tokens <= added


@pytest.mark.parametrize(("n", "where"), [(1, "before the answer began"), (8, "in its reasoning"), (20, "")])
def test_a_limit_in_the_middle(engine, n, where):
    whole = REASONED[THINKING]
    talk = dialogue(engine(), says(whole), n=n)
    reasoning, answer = said(talk)
    assert talk.ending == (where and f"--max-tokens ended it {where}: not kept")
    if where:
        assert whole.startswith(f"<think>\n{reasoning}")
        assert bool(reasoning) == ("reasoning" in where)
        assert (answer, talk.conversation.exchanges, talk.answered) == ("", [], False)
    else:
        assert answer
        assert talk.conversation.exchanges == [Exchange("hello", answer, "Is it so?")]


def test_a_stop_while_it_reasons(engine):
    talk = dialogue(engine(), says(REASONED[THINKING]))
    pieces = talk.answer("hello")
    assert next(pieces).is_reasoning
    talk.generation.cancel()
    assert all(piece.is_reasoning for piece in pieces)
    assert talk.ending == "stopped while it reasoned: not kept"
    assert not talk.status().startswith("reasoning")
    assert talk.conversation.exchanges == []
    assert said(talk)[1] == "Yup, it is"  # the dialogue continues


def test_a_stop_in_the_answer_keeps_both(engine, monkeypatch):
    monkeypatch.setattr("spac.engine.chat_format.READING_SHARE", 1.0)
    talk = dialogue(engine(), says(REASONED[THINKING]))
    answer = ""
    for piece in talk.answer("hello"):
        if not piece.is_reasoning:
            answer += piece.text
            talk.generation.cancel()
    assert talk.ending == "stopped"
    assert "Yup, it is".startswith(answer)
    assert answer != "Yup, it is"
    assert talk.conversation.exchanges == [Exchange("hello", answer, "Is it so?")]


def test_reasoning_and_no_answer(engine):
    talk = dialogue(engine(), says("<think>So.</think>"))
    assert talk.ending == ""  # no question was asked yet
    assert said(talk) == ("So.", "")
    assert talk.ending == "the model reasoned and did not answer: not kept"
    assert talk.conversation.exchanges == []

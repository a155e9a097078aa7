"""An assistant's message at the end is the beginning of the answer. The prompt ends with it, and the answer
is the text that follows."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest

from spac import demo
from spac.config import EngineConfig, SamplingConfig
from spac.engine import Engine
from spac.engine.chat_format import ChatFormat
from spac.errors import InputError
from tests.chat.templates import ADD, CHANNELS, THINKING
from tests.chat.test_published_templates import TEMPLATES

USER = {"role": "user", "content": "hello"}
SCHEMA = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"],
          "additionalProperties": False}  # fmt: skip
BEGUN = ("Well, ", "one\n\ntwo", " - a\n", "```py\n", "{")
NAMES = [*TEMPLATES, "thinking", "channels"]
NEW = ("met", " in deed\n\nyes", "\n- b")
WITHOUT = "command-r7b"
"""The template whose answers stand between tags. The library's own continuation leaves these tags out."""
OPENED = ("<think>", "<seed:think>", "<mm:think>", "<|START_THINKING|>", "my reasoning steps:")
"""Tags with which templates begin the reasoning themselves. An answer that has begun ends the reasoning."""
NO_REASONING = ("LFM2-8B-A1B", "Kimi-K2-Instruct", "Devstral", "Phi-3.5", "Qwen3-Coder", "Hermes", "Llama-3")
REASONING = {
    "GLM-4.6", "openai-gpt-oss-120b", "MiniMax-M2", "Qwen3.5-4B", "deepseek-ai-DeepSeek-V3.2",
    "Kimi-K2-Thinking",
}  # fmt: skip


@pytest.fixture(scope="module")
def engine():
    with Engine(EngineConfig(demo.TARGET, slots=4, threads=1, ctx=512)) as engine:
        yield engine


def begun(content: Any = "", **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **more}


def read(form: ChatFormat, prompt: Any, text: str) -> tuple[str, str]:
    """Return content and reasoning of the answer. Check that they equal those of its deltas."""
    answer, deltas = form.answer(prompt), []
    for character in text:
        deltas += answer.push(character)
    deltas += answer.finish()
    assert "".join(delta.content for delta in deltas) == answer.content
    assert "".join(delta.reasoning for delta in deltas) == answer.reasoning
    return answer.content, answer.reasoning


def on(form: ChatFormat, *messages: dict[str, Any], **options: Any) -> Any:
    """Return the prompt whose last message goes on."""
    return form.prompt([USER, *messages], continues=True, **options)


@pytest.fixture
def form(engine):
    return ChatFormat(engine.target, THINKING)


@pytest.fixture(scope="module")
def form_of(engine):
    """Return a function of a template's name. It keeps the forms, because it takes long to make one."""
    sources = {**TEMPLATES, "thinking": THINKING, "channels": CHANNELS}
    return cache(lambda name: ChatFormat(engine.target, sources[name]))


@pytest.mark.parametrize("thinking", [True, False], ids=["thinking", "not"])
@pytest.mark.parametrize("name", NAMES)
def test_the_answer_is_what_is_new(form_of, name, thinking):
    form = form_of(name)
    fresh = form.prompt([USER], thinking=thinking).text
    if WITHOUT in name:
        with pytest.raises(InputError, match="refuses these messages: in its format, an answer cannot go on"):
            on(form, begun(BEGUN[0]), thinking=thinking)
        return
    turn = NAMES.index(name) % 4 + 1
    for text in (BEGUN[0], BEGUN[turn], BEGUN[turn % 4 + 1]):  # each template meets three beginnings
        prompt = on(form, begun(text), thinking=thinking)
        assert prompt.text.endswith(text)
        if not fresh.rstrip().endswith(OPENED):
            assert prompt.text.startswith(fresh)
        if fresh.rstrip().endswith("</think>"):
            assert prompt.text == fresh + text
        for once in ("<think>", "</think>", "<|start|>assistant", "hello"):
            assert prompt.text.count(once) <= fresh.count(once) + (once != "hello"), once
        if any(each in name for each in NO_REASONING):
            assert "<think>" not in prompt.text
            assert "[THINK]" not in prompt.text
        for new in NEW:
            assert read(form, prompt, new) == (new, "")


@pytest.mark.parametrize("name", sorted(REASONING & TEMPLATES.keys()))
def test_a_reasoning_goes_on(form_of, name):
    form = form_of(name)
    prompt = on(form, begun(reasoning_content="Hmm, I "))
    assert prompt.text.endswith("Hmm, I ")
    assert read(form, prompt, "see") == ("", "see")
    with pytest.raises(InputError, match="reasoning is turned off"):
        on(form, begun(reasoning_content="Hmm"), thinking=False)


def test_a_reasoning_that_goes_on_may_end(form):
    prompt = on(form, begun(reasoning_content="Hmm, I "))
    content, reasoning = read(form, prompt, "see\n</think>\n\nhello")
    assert (content.strip(), reasoning.strip()) == ("hello", "see")
    whole = on(form, begun("Well", reasoning_content="Hmm"))
    assert whole.text.endswith("<think>\nHmm\n</think>\n\nWell")
    assert read(form, whole, " met") == (" met", "")


def test_a_call_behind_what_was_begun(form):
    answer = form.answer(on(form, begun("I add. "), tools=[ADD]))
    answer.push('So:\n<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>')
    answer.finish()
    assert answer.content.strip() == "So:"
    assert [call["name"] for call in answer.tool_calls] == ["add"]


def test_what_is_no_answer_of_the_format_is_text(form):
    assert read(form, on(form, begun("{"), json_schema=SCHEMA), "nonsense") == ("nonsense", "")


@pytest.mark.parametrize("text", ['{"ok"', '{ "ok" : t'])
def test_a_schema_goes_on(engine, form, text):
    prompt = on(form, begun(text), json_schema=SCHEMA)
    pieces = engine.generate(prompt.text, 60, sampling=SamplingConfig(temp=0), chat=prompt)
    content, _ = read(form, prompt, "".join(pieces))
    assert set(json.loads(text + content)) == {"ok"}


def test_a_beginning_that_a_schema_does_not_allow(engine, form):
    with pytest.raises(InputError, match="cannot go on with"):
        on(form, begun("Sure: "), json_schema=SCHEMA)
    for text in ('{"no"', "[1"):
        prompt = on(form, begun(text), json_schema=SCHEMA)
        with pytest.raises(InputError, match="begins with what its schema or its tools do not allow"):
            next(engine.generate(prompt.text, 4, sampling=SamplingConfig(temp=0), chat=prompt))


@pytest.mark.parametrize("empty", [{"content": ""}, {"content": None}, {"content": []}, {}])
def test_nothing_to_go_on_with(form, empty):
    prompt = on(form, {"role": "assistant", **empty})
    assert prompt.text == form.prompt([USER]).text
    assert not prompt.goes_on


def test_parts_of_a_content(form):
    prompt = on(form, begun([{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]))
    assert prompt.text.endswith("one\n\ntwo")
    assert read(form, prompt, ", three") == (", three", "")


def test_without_a_template(tiny_model):
    with Engine(EngineConfig(tiny_model("qwen3moe", n_vocab=288), device="cpu", ctx=256)) as engine:
        form = ChatFormat(engine.target)
    assert form.is_plain
    prompt = on(form, begun("yes"))
    assert prompt.text.endswith("User: hello\nAssistant: yes")
    assert read(form, prompt, ", no") == (", no", "")
    with pytest.raises(InputError, match="cannot go on with a reasoning"):
        on(form, begun(reasoning_content="hm"))


CALL = {"id": "c", "type": "function", "function": {"name": "add", "arguments": "{}"}}


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([begun("a"), begun("b")], "only one can be continued"), ([begun(3)], "content"),
        ([begun("a", tool_calls=[CALL])], "a call of tools cannot be continued"),
    ],
)  # fmt: skip
def test_what_cannot_be_continued(form, messages, words):
    with pytest.raises(InputError, match=words) as refused:
        on(form, *messages)
    assert "\n" not in str(refused.value)


def test_a_whole_message_is_no_beginning(form):
    text = form.prompt([USER, begun("well met")]).text
    assert text.endswith("well met<|im_end|>\n<|im_start|>assistant\n")

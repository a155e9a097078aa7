"""The chat format makes prompts of messages by the model's own template or another one, and messages of
answers."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spac import _core
from spac.config import EngineConfig, SamplingConfig
from spac.engine import Engine
from spac.engine.chat_format import ChatFormat
from spac.errors import InputError
from tests.chat.conftest import KEEPS, OPENS, TEMPLATE
from tests.chat.templates import ADD, CHANNELS, THINKING, THINKING_TOKENS

USER = {"role": "user", "content": "hello"}
SYSTEM = {"role": "system", "content": "be brief"}
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 22}}\n</tool_call>'
WITHOUT_SYSTEM = "{% for m in messages if m.role != 'system' %}[{{ m.content }}]{% endfor %}"
GREEDY = SamplingConfig(temp=0)


@pytest.fixture(scope="module")
def engine(templated):
    """Yield the engine of a model with the channels' template and MARKS as control tokens."""
    with Engine(EngineConfig(templated(CHANNELS), slots=4, threads=1, ctx=512)) as engine:
        yield engine


@pytest.fixture(scope="module")
def target(engine):
    return engine.target


def read(form, prompt, text, size=1):
    """Return the answer and its deltas, read in pieces of `size` characters. No text is taken back."""
    answer, deltas = form.answer(prompt), []
    for start in range(0, len(text), size):
        answer._due = 0  # read each time, however fast the pieces come
        deltas += answer.push(text[start : start + size])
    deltas += answer.finish()
    assert "".join(delta.reasoning for delta in deltas) == answer.reasoning
    assert "".join(delta.content for delta in deltas) == answer.content
    return answer, deltas


@pytest.mark.parametrize("adds_begin", [False, True])
def test_the_template_of_the_file(templated, adds_begin):
    adds = {"tokenizer.ggml.add_bos_token": adds_begin}
    with Engine(EngineConfig(templated(), slots=4, threads=1, ctx=256, override_kv=adds)) as engine:
        assert engine.target.adds_begin == adds_begin
        chat = ChatFormat(engine.target)
        assert (chat.note, chat.stop, chat.is_plain) == ("", (), False)
        text = chat.prompt([SYSTEM, USER]).text
        assert text.endswith("<system>be brief</system><user>hello</user><assistant>")
        begin = engine.target.begin_text
        assert text.startswith("<system>" if adds_begin else begin + "<system>")
        tokens = engine.tokenize(text).tolist()
        # The token comes once, whether the template or the tokenizer adds it.
        assert tokens.count(engine.tokenize(begin)[-1]) == 1


FAULTY = {
    "{% if %}": "Unexpected token", "{{ messages | nothing }}": "'nothing'", " ": "it is empty",
    "{{ nothing.at.all }}": "it renders nothing", "{{ raise_exception('no way') }}": "no way",
    "{# #}": "it renders nothing", "{% for m in %}": "",
}  # fmt: skip


@pytest.mark.parametrize(("faulty", "fault"), FAULTY.items())
def test_a_template_that_cannot_be_used(templated, target, faulty, fault):
    with pytest.raises(InputError, match="the chat template cannot be used: ") as refused:
        ChatFormat(target, faulty)
    with Engine(EngineConfig(templated(faulty), slots=4, threads=1, ctx=256)) as engine:
        chat = ChatFormat(engine.target)
    for message in (str(refused.value), chat.note):
        assert "cannot be used" in message
        assert fault in message
        assert "\n" not in message
        assert "exception" not in message.lower()
    assert chat.prompt([USER]).text == "User: hello\nAssistant:"
    assert chat.stop


def test_without_a_template(tiny_model):
    with Engine(EngineConfig(tiny_model("qwen3moe"), slots=4, threads=1)) as engine:
        form = ChatFormat(engine.target)
        assert "has no chat template" in form.note
        prompt = form.prompt([SYSTEM, USER, {"role": "assistant", "content": "yes?"}, USER])
        assert prompt.text == "be brief\n\nUser: hello\nAssistant: yes?\nUser: hello\nAssistant:"


@pytest.mark.parametrize(
    "source",
    [
        WITHOUT_SYSTEM,
        "{% if messages[0].role == 'system' %}{{ raise_exception('none') }}{% endif %}" + WITHOUT_SYSTEM,
        # This template reads the message that it leaves out.
        "{% for m in messages %}{% set text = m.content | trim %}"
        "{% if m.role != 'system' %}[{{ text }}]{% endif %}{% endfor %}",
    ],
)
def test_a_template_without_a_place_for_the_system_prompt(target, source):
    chat = ChatFormat(target, source)
    assert "no system prompt" in chat.note
    parts = {"role": "user", "content": [{"type": "text", "text": "hello"}]}
    for messages, text in (
        ([SYSTEM, USER], "[be brief\nhello]"), ([SYSTEM, parts], "[be brief\nhello]"), ([USER], "[hello]"),
        ([SYSTEM, USER, {"role": "assistant", "content": "a"}, USER], "[be brief\nhello][a][hello]"),
    ):  # fmt: skip
        assert chat.prompt(messages).text == text


def test_messages_that_it_refuses(target):
    source = (
        "{% if messages | length > 1 %}{{ raise_exception('too\nmany') }}{% endif %}{{ messages[0].role }}"
    )
    with pytest.raises(InputError, match=r"refuses these messages: too.*many$") as refused:
        ChatFormat(target, source).prompt([USER, USER, USER])
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("source", "thinks", "can_stop"),
    [(TEMPLATE, False, False), (THINKING, True, True), (CHANNELS, True, False)],
)
def test_what_a_template_tells_of_reasoning(target, source, thinks, can_stop):
    chat = ChatFormat(target, source)
    assert (chat.thinks, chat.can_stop_thinking) == (thinks, can_stop)
    off = chat.prompt([USER], thinking=False).text
    assert (off != chat.prompt([USER]).text) == can_stop


@pytest.mark.parametrize(("source", "kept"), [(THINKING, False), (KEEPS, True)])
def test_the_template_decides_whether_old_reasoning_is_seen(target, source, kept):
    said = {"role": "assistant", "content": "yes?", "reasoning_content": "a greeting"}
    text = ChatFormat(target, source).prompt([USER, said, USER]).text
    assert ("<think>\na greeting\n</think>\n\nyes?" in text) == kept
    assert "yes?<|im_end|>" in text


def test_variables_reach_the_template(target):
    form = ChatFormat(target, "{{ level }}:{{ messages[0].content }}")
    assert form.prompt([USER], variables={"level": "low"}).text == "low:hello"


# Answers are read as they come, and whole.

REASONED = "<|channel|>analysis<|message|>A greeting.<|end|><|start|>assistant<|channel|>final<|message|>Hi"
READ = [
    (THINKING, "<think>\nA greeting.\n</think>\n\nHi", "A greeting.", "Hi"), (THINKING, "Hi", "", "Hi"),
    (THINKING, "<think>A greeting.", "A greeting.", ""), (THINKING, "<think>\n\n</think>Hi", "", "Hi"),
    (CHANNELS, REASONED, "A greeting.", "Hi"), (CHANNELS, "<|channel|>final<|message|>Hi", "", "Hi"),
    (CHANNELS, "<|channel|>analysis<|message|>A greet", "A greet", ""), (CHANNELS, "<|channel|>anal", "", ""),
    (CHANNELS, "Hi without a channel", "", "Hi without a channel"),
    (TEMPLATE, "<think>Hi</think>", "", "<think>Hi</think>"),  # this template does not know the tag
]  # fmt: skip


@pytest.mark.parametrize(("source", "text", "reasoning", "content"), READ)
def test_an_answer_is_read(target, source, text, reasoning, content):
    """Reading by characters and reading at once give the same answer."""
    chat = ChatFormat(target, source)
    for size in (1, len(text)):
        answer, _ = read(chat, chat.prompt([USER]), text, size)
        assert (answer.reasoning.strip(), answer.content) == (reasoning, content)


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_tool_calls_come_as_they_are_written(target, size):
    form = ChatFormat(target, THINKING)
    answer, deltas = read(form, form.prompt([USER], tools=[ADD]), "<think>x</think>" + CALL, size)
    [call] = answer.tool_calls
    assert (call["name"], json.loads(call["arguments"])) == ("add", {"a": 1, "b": 22})
    parts = [delta for delta in deltas if delta.index == 0]
    assert [part.name for part in parts if part.name] == ["add"]
    assert "".join(part.arguments for part in parts) == call["arguments"]
    assert len(parts) > 3 if size == 1 else True


@given(st.text(alphabet="<think>/ \n{}a\"'é|", max_size=60), st.integers(1, 9))
def test_deltas_add_up_to_the_answer(target, text, size):
    form = ChatFormat(target, THINKING)
    read(form, form.prompt([USER], tools=[ADD]), text, size)


# These tests need a model that generates.


def test_control_tokens_are_text_for_their_own_format_alone(engine):
    form = ChatFormat(engine.target, THINKING)
    prompt = form.prompt([USER])
    start, end = (int(engine.tokenize(text)[0]) for text in THINKING_TOKENS)
    assert {start, end} <= set(prompt.preserved_tokens)
    grammar = f'root ::= <[{start}]> "hm" <[{end}]> "Hi"'  # it could also spell them
    greedy = SamplingConfig(temp=0, grammar=grammar)
    text = "".join(engine.generate(prompt.text, 200, sampling=greedy, chat=prompt))
    answer, _ = read(form, prompt, text)
    assert (answer.reasoning, answer.content) == ("hm", "Hi")
    assert "".join(engine.generate(prompt.text, 200, sampling=greedy)) == "hmHi"


def test_the_reasoning_budget_ends_it(engine):
    prompt = ChatFormat(engine.target, OPENS).prompt([USER])
    assert prompt.text.endswith("<think>\n")
    endless, end = SamplingConfig(temp=0, ignore_eos=True), int(engine.tokenize("</think>")[0])
    # Without a budget, the reasoning does not end by itself.
    for budget, length in ((-1, None), (0, 0), (1, 1), (5, 5)):
        made = engine.generate(prompt.text, 30, sampling=endless, chat=prompt, reasoning_budget=budget)
        text = "".join(made)
        assert (made.tokens.index(end) if "</think>" in text else None) == length


def test_a_schema_holds_from_the_first_token(engine):
    """After it, the loop is free again."""
    form = ChatFormat(engine.target, THINKING)
    before = "".join(engine.generate("hello", 12, sampling=GREEDY))
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"],
              "additionalProperties": False}  # fmt: skip
    prompt = form.prompt([USER], json_schema=schema, thinking=False)
    generation = engine.generate(prompt.text, 60, sampling=GREEDY, chat=prompt)
    answer, _ = read(form, prompt, "".join(generation))
    assert generation.reason == "stop"
    assert set(json.loads(answer.content)) == {"ok"}
    assert "".join(engine.generate("hello", 12, sampling=GREEDY)) == before


def test_tools_leave_what_is_no_call_alone(engine):
    """The grammar of calls waits until one begins. Until then, the text is the same as without tools."""
    prompt = ChatFormat(engine.target, THINKING).prompt([USER], tools=[ADD])
    free = "".join(engine.generate(prompt.text, 24, sampling=GREEDY))
    assert "".join(engine.generate(prompt.text, 24, sampling=GREEDY, chat=prompt)) == free != ""


NO_REQUESTS = ("nonsense", "[]", "{}", '{"messages": 3}', '{"messages": [{"role": 1}]}',
               '{"messages": [], "chat_template_kwargs": 3}')  # fmt: skip


@pytest.mark.parametrize("request_", NO_REQUESTS)
def test_requests_that_are_none(target, request_):
    with pytest.raises(InputError):
        _core.ChatTemplates(target.pointer, THINKING).apply(request_)


def test_without_a_model():
    with pytest.raises(InputError, match="null pointer"):
        _core.ChatTemplates(0)

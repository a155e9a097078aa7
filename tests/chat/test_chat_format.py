"""The chat format makes prompts of messages, and messages of answers."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spac.config import EngineConfig, SamplingConfig
from spac.engine import Engine, chat_format
from spac.engine.chat_format import ChatFormat
from spac.errors import InputError
from tests.chat.templates import (
    ADD,
    CHANNEL_TOKENS,
    CHANNELS,
    END_TOKENS,
    THINKING,
    THINKING_TOKENS,
    with_template,
)

USER = {"role": "user", "content": "hello"}
SYSTEM = {"role": "system", "content": "be brief"}
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 22}}\n</tool_call>'


@pytest.fixture(scope="module")
def engine(tiny_model, tmp_path_factory):
    """Yield the engine of a model with the channels' template and their control tokens in its vocabulary."""
    path = tmp_path_factory.mktemp("formats") / "model.gguf"
    with_template(
        tiny_model("qwen3moe", n_vocab=288), path, CHANNELS, (*CHANNEL_TOKENS, *END_TOKENS, *THINKING_TOKENS)
    )
    with Engine(EngineConfig(path, slots=4, threads=1, ctx=512)) as engine:
        yield engine


@pytest.fixture
def every_piece_is_read(monkeypatch):
    """Read every piece. Otherwise the pieces that are read depend on time."""
    monkeypatch.setattr(chat_format, "READING_SHARE", 1.0)


def read(form, prompt, text, size=1):
    """Return the answer, read in pieces of `size` characters, and its deltas."""
    answer = form.answer(prompt)
    deltas = []
    for start in range(0, len(text), size):
        deltas += answer.push(text[start : start + size])
    return answer, deltas + answer.finish()


def test_reasoning_is_a_part_of_its_own(engine):
    form = ChatFormat(engine.target, THINKING)
    answer, _ = read(form, form.prompt([USER]), "<think>\nhmm\n</think>\n\nhi there")
    assert (answer.reasoning.strip(), answer.content) == ("hmm", "hi there")


def test_channels_are_read_as_such(engine):
    form = ChatFormat(engine.target)
    prompt = form.prompt([USER])
    text = "<|channel|>analysis<|message|>hmm<|end|><|start|>assistant<|channel|>final<|message|>Hello"
    answer, _ = read(form, prompt, text)
    assert (answer.reasoning, answer.content) == ("hmm", "Hello")
    assert prompt.thinks


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_tool_calls_come_as_they_are_written(engine, size, every_piece_is_read):
    form = ChatFormat(engine.target, THINKING)
    answer, deltas = read(form, form.prompt([USER], tools=[ADD]), "<think>x</think>" + CALL, size)
    assert [(call["name"], json.loads(call["arguments"])) for call in answer.tool_calls] == [
        ("add", {"a": 1, "b": 22})
    ]
    parts = [delta for delta in deltas if delta.index == 0]
    assert [part.name for part in parts if part.name] == ["add"]
    assert "".join(part.arguments for part in parts) == answer.tool_calls[0]["arguments"]
    assert len(parts) > 3 if size == 1 else True


@given(st.text(alphabet="<think>/ \n{}a\"'é|", max_size=60), st.integers(1, 9))
def test_deltas_add_up_to_the_answer(engine, text, size):
    """Whatever a model writes, no text that was sent is taken back."""
    form = ChatFormat(engine.target, THINKING)
    answer, deltas = read(form, form.prompt([USER], tools=[ADD]), text, size)
    assert "".join(delta.reasoning for delta in deltas) == answer.reasoning
    assert "".join(delta.content for delta in deltas) == answer.content


def test_an_answer_in_another_format_is_text(engine):
    form = ChatFormat(engine.target)
    answer, _ = read(form, form.prompt([USER]), "no channels here")
    assert (answer.content, answer.reasoning, answer.tool_calls) == ("no channels here", "", [])


def test_an_answer_that_is_cut_is_sent_as_far_as_it_came(engine):
    form = ChatFormat(engine.target, THINKING)
    answer, _ = read(form, form.prompt([USER]), "<think>\nhalf a thou")
    assert (answer.reasoning, answer.content) == ("half a thou", "")


def test_reasoning_can_be_turned_off_where_the_template_can(engine):
    form = ChatFormat(engine.target, THINKING)
    assert form.can_stop_thinking
    assert form.prompt([USER], thinking=False).text.endswith("<think>\n\n</think>\n\n")
    assert form.prompt([USER]).text.endswith("<|im_start|>assistant\n")


def test_variables_reach_the_template(engine):
    form = ChatFormat(engine.target, "{{ level }}:{{ messages[0].content }}")
    assert form.prompt([USER], variables={"level": "low"}).text == "low:hello"


def test_a_template_without_system_role_gets_it_in_the_first_message(engine):
    form = ChatFormat(
        engine.target,
        "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
        "[{{ m.role }}]{{ m.content }}{% endfor %}",
    )
    assert "no system prompt" in form.note
    text = form.prompt([SYSTEM, USER]).text
    assert "be brief" in text
    assert text.startswith("[user]")


def test_a_refusal_of_the_template_is_one_line(engine):
    form = ChatFormat(
        engine.target,
        "{% if messages|length > 2 %}{{ raise_exception('too\nmany') }}{% endif %}{{ messages[0].content }}",
    )
    with pytest.raises(InputError, match=r"refuses these messages: .*too") as refused:
        form.prompt([USER, USER, USER])
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("faulty", ["{% if %}", "{{ raise_exception('no') }}", "{# #}", "{% for m in %}"])
def test_a_faulty_template_that_is_given(engine, faulty):
    with pytest.raises(InputError, match="the chat template cannot be used") as refused:
        ChatFormat(engine.target, faulty)
    assert "\n" not in str(refused.value)


def test_without_a_template(tiny_model):
    with Engine(EngineConfig(tiny_model("qwen3moe"), slots=4, threads=1)) as engine:
        form = ChatFormat(engine.target)
        assert "has no chat template" in form.note
        prompt = form.prompt([SYSTEM, USER, {"role": "assistant", "content": "yes?"}, USER])
        assert prompt.text == "be brief\n\nUser: hello\nAssistant: yes?\nUser: hello\nAssistant:"
        answer, _ = read(form, prompt, "<think>all of it</think> is text")
        assert answer.content == "<think>all of it</think> is text"


def test_the_beginning_token_comes_once(engine, tiny_model, tmp_path):
    path = with_template(
        tiny_model("qwen3moe"), tmp_path / "m.gguf", "{{ bos_token }}{{ messages[0].content }}"
    )
    with Engine(EngineConfig(path, slots=4, threads=1)) as other:
        text = ChatFormat(other.target).prompt([USER]).text
        assert text.endswith("hello")
        begin = other.tokenize(other.target.begin_text)[-1]
        assert other.tokenize(text).tolist().count(begin) == 1


# These tests need a model that generates.


def test_control_tokens_are_text_for_their_own_format_alone(engine):
    form = ChatFormat(engine.target, THINKING)
    prompt = form.prompt([USER])
    start, end = (int(engine.tokenize(text)[0]) for text in THINKING_TOKENS)
    assert {start, end} <= set(prompt.preserved_tokens)
    greedy = SamplingConfig(
        temp=0, grammar=f'root ::= <[{start}]> "hm" <[{end}]> "Hi"'
    )  # the grammar could also spell them
    answer = form.answer(prompt)
    for piece in engine.generate(prompt.text, 200, sampling=greedy, chat=prompt):
        answer.push(piece)
    answer.finish()
    assert (answer.reasoning, answer.content) == ("hm", "Hi")
    assert "".join(engine.generate(prompt.text, 200, sampling=greedy)) == "hmHi"


def test_the_reasoning_budget_ends_it(engine):
    opened = THINKING.replace("{% endif %}{% endif %}", "{% else %}<think>\n{% endif %}{% endif %}")
    form = ChatFormat(engine.target, opened)
    prompt = form.prompt([USER])
    assert prompt.text.endswith("<think>\n")

    def reasoned(budget):
        generation = engine.generate(
            prompt.text, 30, sampling=SamplingConfig(temp=0, ignore_eos=True), chat=prompt,
            reasoning_budget=budget,
        )  # fmt: skip
        text = "".join(generation)
        end = int(engine.tokenize("</think>")[0])
        return generation.tokens.index(end) if "</think>" in text else None

    assert reasoned(-1) is None  # the reasoning does not end by itself
    assert [reasoned(budget) for budget in (0, 1, 5)] == [0, 1, 5]


def test_a_schema_holds_from_the_first_token(engine):
    form = ChatFormat(engine.target, THINKING)
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"],
              "additionalProperties": False}  # fmt: skip
    prompt = form.prompt([USER], json_schema=schema, thinking=False)
    generation = engine.generate(prompt.text, 60, sampling=SamplingConfig(temp=0), chat=prompt)
    answer = form.answer(prompt)
    for piece in generation:
        answer.push(piece)
    answer.finish()
    assert generation.reason == "stop"
    assert set(json.loads(answer.content)) == {"ok"}


def test_tools_leave_what_is_no_call_alone(engine):
    """The grammar of calls waits until one begins. Until then, the text is the same as without tools."""
    form = ChatFormat(engine.target, THINKING)
    prompt = form.prompt([USER], tools=[ADD])
    greedy = SamplingConfig(temp=0)
    free = "".join(engine.generate(prompt.text, 24, sampling=greedy))
    assert "".join(engine.generate(prompt.text, 24, sampling=greedy, chat=prompt)) == free != ""


def test_after_a_chat_the_loop_is_free_again(engine):
    form = ChatFormat(engine.target, THINKING)
    schema = {"type": "object", "properties": {}, "additionalProperties": False}
    prompt = form.prompt([USER], json_schema=schema, thinking=False)
    greedy = SamplingConfig(temp=0)
    before = "".join(engine.generate("hello", 12, sampling=greedy))
    assert set("".join(engine.generate(prompt.text, 40, sampling=greedy, chat=prompt))) <= set(" \t\n{}")
    assert "".join(engine.generate("hello", 12, sampling=greedy)) == before


@pytest.mark.parametrize(
    "request_",
    [
        "nonsense",
        "[]",
        "{}",
        '{"messages": 3}',
        '{"messages": [{"role": 1}]}',
        '{"messages": [], "chat_template_kwargs": 3}',
    ],
)
def test_requests_that_are_none(engine, request_):
    from spac import _core

    with pytest.raises(InputError):
        _core.ChatTemplates(engine.target.pointer, THINKING).apply(request_)


def test_without_a_model():
    from spac import _core

    with pytest.raises(InputError, match="null pointer"):
        _core.ChatTemplates(0)

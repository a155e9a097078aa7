"""The chat uses the model's own template, or another one if that cannot be used."""

from __future__ import annotations

import pytest

from spac.config import EngineConfig
from spac.engine import Engine
from spac.engine.chat_format import ChatFormat
from spac.errors import InputError
from tests.chat.conftest import KEEPS, TEMPLATE
from tests.chat.templates import CHANNELS, THINKING

USER = {"role": "user", "content": "hello"}
SYSTEM = {"role": "system", "content": "be brief"}
WITHOUT_SYSTEM = "{% for m in messages if m.role != 'system' %}[{{ m.content }}]{% endfor %}"


@pytest.fixture(scope="module")
def target(tiny_model):
    with Engine(EngineConfig(tiny_model("qwen3moe"), slots=4, threads=1, ctx=256)) as engine:
        yield engine.target


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
    "{% if %}": "Unexpected token",
    "{{ messages | nothing }}": "'nothing'",
    "{{ nothing.at.all }}": "it renders nothing",
    "{{ raise_exception('no way') }}": "no way",
    "{# #}": "it renders nothing",
    " ": "it is empty",
}


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
    assert chat.prompt([SYSTEM, USER]).text == "[be brief\nhello]"
    parts = {"role": "user", "content": [{"type": "text", "text": "hello"}]}
    assert chat.prompt([SYSTEM, parts]).text == "[be brief\nhello]"
    assert chat.prompt([USER]).text == "[hello]"
    assert chat.prompt([SYSTEM, USER, {"role": "assistant", "content": "a"}, USER]).text == (
        "[be brief\nhello][a][hello]"
    )


def test_messages_that_it_refuses(target):
    source = (
        "{% if messages | length > 1 %}{{ raise_exception('too many') }}{% endif %}{{ messages[0].content }}"
    )
    with pytest.raises(InputError, match=r"refuses these messages: too many$"):
        ChatFormat(target, source).prompt([USER, USER, USER])


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


# Answers are read as they come, and whole.

REASONED = "<|channel|>analysis<|message|>A greeting.<|end|><|start|>assistant<|channel|>final<|message|>Hi"
READ = [
    (THINKING, "<think>\nA greeting.\n</think>\n\nHi", "\nA greeting.\n", "Hi"),
    (THINKING, "Hi", "", "Hi"),
    (THINKING, "<think>A greeting.", "A greeting.", ""),
    (THINKING, "<think>\n\n</think>Hi", "", "Hi"),
    (CHANNELS, REASONED, "A greeting.", "Hi"),
    (CHANNELS, "<|channel|>final<|message|>Hi", "", "Hi"),
    (CHANNELS, "<|channel|>analysis<|message|>A greet", "A greet", ""),
    (CHANNELS, "<|channel|>anal", "", ""),
    (CHANNELS, "Hi without a channel", "", "Hi without a channel"),
    (TEMPLATE, "<think>Hi</think>", "", "<think>Hi</think>"),  # this template does not know the tag
]


@pytest.mark.parametrize(("source", "text", "reasoning", "content"), READ)
def test_an_answer_is_read(target, source, text, reasoning, content):
    """Reading by characters and reading at once give the same answer. No text that was sent is taken back."""
    chat = ChatFormat(target, source)
    for pieces in (list(text), [text]):
        answer, sent = chat.answer(chat.prompt([USER])), []
        for piece in pieces:
            answer._due = 0  # read each time, however fast the pieces come
            sent += answer.push(piece)
        sent += answer.finish()
        assert (
            "".join(delta.reasoning for delta in sent).strip()
            == reasoning.strip()
            == answer.reasoning.strip()
        )
        assert "".join(delta.content for delta in sent) == content == answer.content

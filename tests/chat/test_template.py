"""The model's own chat template, and what takes its place."""

from __future__ import annotations

import pytest

from spac.chat.template import Template
from spac.config import EngineConfig
from spac.engine import Engine
from spac.errors import InputError
from tests.chat.conftest import TEMPLATE

USER = {"role": "user", "content": "hello"}
SYSTEM = {"role": "system", "content": "be brief"}


class Vocabulary:
    """What a template asks of a model."""

    def __init__(self, template=None, begin="<s>", end="</s>", adds_begin=True):
        self.chat_template, self.begin_text, self.end_text, self.adds_begin = template, begin, end, adds_begin

    class path:  # noqa: N801
        name = "model.gguf"


def test_the_template_of_the_file(templated):
    with Engine(EngineConfig(templated(), slots=4, threads=1)) as engine:
        template = Template(engine.target)
        assert template.note == ""
        assert template.stop == ()
        prompt = template.render([SYSTEM, USER])
        assert prompt.endswith("<system>be brief</system><user>hello</user><assistant>")
        begins = (
            engine.tokenize(prompt).tolist().count(engine.tokenize("")[0]) if engine.target.adds_begin else 1
        )
        assert begins == 1  # the beginning token comes once, whoever adds it


def test_the_beginning_token_is_added_once():
    assert Template(Vocabulary(TEMPLATE)).render([USER]).startswith("<user>")
    assert Template(Vocabulary(TEMPLATE, adds_begin=False)).render([USER]).startswith("<s><user>")


def test_without_a_template():
    template = Template(Vocabulary())
    assert "model.gguf has no chat template" in template.note
    assert template.stop == ("\nUser:",)
    messages = [SYSTEM, USER, {"role": "assistant", "content": "yes?"}, USER]
    assert template.render(messages) == "be brief\n\nUser: hello\nAssistant: yes?\nUser: hello\nAssistant:"


@pytest.mark.parametrize(
    "faulty", ["{% if %}", "{{ nothing.at.all }}", "{{ raise_exception('no') }}", "{# #}"]
)
def test_a_template_that_cannot_be_used(faulty):
    template = Template(Vocabulary(faulty))
    assert "cannot be used" in template.note
    assert "\n" not in template.note
    assert template.render([USER]) == "User: hello\nAssistant:"
    with pytest.raises(InputError, match="cannot be used"):
        Template(Vocabulary(), faulty)


@pytest.mark.parametrize(
    "silent", ["", "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}"]
)
def test_a_template_without_a_place_for_the_system_prompt(silent):
    source = silent + "{% for m in messages if m.role != 'system' %}[{{ m.content }}]{% endfor %}"
    template = Template(Vocabulary(source))
    assert "no system prompt" in template.note
    assert template.render([SYSTEM, USER]) == "[be brief\n\nhello]"
    assert template.render([USER]) == "[hello]"


def test_messages_that_it_refuses():
    source = (
        "{% if messages | length > 1 %}{{ raise_exception('too many') }}{% endif %}{{ messages[0].content }}"
    )
    with pytest.raises(InputError, match="refuses these messages: too many"):
        Template(Vocabulary(source)).render([USER, USER, USER])

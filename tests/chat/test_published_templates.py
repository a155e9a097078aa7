"""These tests use the chat templates of llama.cpp's own tests, from the source that the build has fetched."""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Any

import pytest

from spac import _core, demo
from spac.config import EngineConfig, SamplingConfig
from spac.engine import Engine
from spac.engine.chat_format import ChatFormat
from tests.chat.templates import ADD
from tools.patches.source import sdist

pytestmark = pytest.mark.nightly

USER = {"role": "user", "content": "hello"}
SYSTEM = {"role": "system", "content": "be brief"}
CALL = {"id": "c12345678", "type": "function", "function": {"name": "add", "arguments": '{"a": 1, "b": 2}'}}
CALLED = [
    USER,
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c12345678", "name": "add", "content": "three"},
]
CONTENT_FIRST = ("CohereForAI-c4ai-command-r-plus-tool_use", "meetkai-functionary-medium-v3.2")
"""Templates whose answers have their content in tags or a channel, which the grammar lets come first."""


def templates() -> dict[str, str]:
    """Return the templates by name. There are none if the source is not in the cache."""
    archive = sdist()
    if archive is None:
        return {}
    with tarfile.open(archive) as tar:
        return {
            Path(each.name).stem: tar.extractfile(each).read().decode()
            for each in tar.getmembers()
            if "/models/templates/" in each.name and each.name.endswith(".jinja")
        }


TEMPLATES = templates()


@pytest.fixture(scope="module")
def engine():
    with Engine(EngineConfig(demo.TARGET, slots=4, threads=1, ctx=256)) as engine:
        yield engine


def begin(engine: Engine, prompt: _core.ChatPrompt, **options: Any) -> None:
    """Begin an answer. Raise InputError if its grammar is not valid."""
    "".join(engine.generate("a", 1, chat=prompt, sampling=SamplingConfig(temp=0.0), **options))


def test_there_are_some():
    if sdist() is None:
        pytest.skip("llama.cpp's sdist is not in the cache: no build has fetched it here")
    assert len(TEMPLATES) > 50


@pytest.fixture(params=TEMPLATES)
def name(request):
    return request.param


@pytest.fixture
def form(engine, name):
    return ChatFormat(engine.target, TEMPLATES[name])


def test_a_chat_is_written_and_its_answer_read(engine, form):
    assert "cannot be used" not in form.note
    prompt = form.prompt([SYSTEM, USER, {"role": "assistant", "content": "well met"}, USER])
    assert "be brief" in prompt.text
    assert "well met" in prompt.text
    answer = form.answer(prompt)
    for character in "plain text":
        answer.push(character)
    answer.finish()
    # If the prompt begins the reasoning, this text is reasoning.
    assert (answer.content + answer.reasoning).strip().endswith("plain text")
    assert answer.content == "" or answer.reasoning == ""
    begin(engine, prompt, reasoning_budget=5)


def test_tools_are_described_and_schemas_followed(engine, form):
    begin(engine, form.prompt([USER], tools=[ADD]))
    text = form.prompt([SYSTEM, *CALLED], tools=[ADD]).text
    assert all(each in text for each in ("three", "add"))
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}}
    begin(engine, form.prompt([USER], json_schema=schema))


def test_a_required_call_comes_first(engine, form, name):
    """The text of this model would go on until its limit if any text could come before the call."""
    prompt = form.prompt([USER], tools=[ADD], tool_choice="required", thinking=False)
    text = "".join(engine.generate("a", 48, chat=prompt, sampling=SamplingConfig(temp=0.0)))
    answer = form.answer(prompt)
    answer.push(text)
    assert answer.content.strip() == "" or name in CONTENT_FIRST, answer.content


@pytest.mark.parametrize("size", [1, 5, 9, 20, 37, 1000])
def test_text_behind_a_call(engine, size):
    """A call that is sent in parts ends before the text behind it."""
    name = "inclusionai-ling-3.0-flash"
    if name not in TEMPLATES:
        pytest.skip("llama.cpp's sdist is not in the cache, or does not have it")
    form = ChatFormat(engine.target, TEMPLATES[name])
    answer = form.answer(form.prompt([USER], tools=[ADD]))
    text = (
        "</think><tool_call>add\n<arg_key>a</arg_key>\n<arg_value>1</arg_value><arg_key>b</arg_key>\n"
        "<arg_value>2</arg_value>\n</tool_call> And more."
    )
    deltas = [delta for at in range(0, len(text), size) for delta in answer.push(text[at : at + size])]
    sent = [each for each in [*deltas, *answer.finish()] if each.content or each.index is not None]
    kinds = "".join("t" if delta.index is None else "c" for delta in sent)
    assert "c" in kinds
    assert "t" not in kinds.strip("t")

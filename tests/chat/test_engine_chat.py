"""`Engine.chat` answers messages in the format of the model's family, in additions or as a message."""

from __future__ import annotations

import asyncio
import json

import pytest

from spac.config import EngineConfig, SamplingConfig
from spac.engine import Engine
from spac.errors import InputError
from tests.chat.conftest import says
from tests.chat.templates import ADD, THINKING

USER = [{"role": "user", "content": "hello"}]
REASONED = "<think>\nIs it so?\n</think>\n\nYup, it is"


@pytest.fixture(scope="module")
def engine(templated):
    config = EngineConfig(templated(THINKING), device="simulated", slots=4, threads=1, ctx=512)
    with Engine(config) as engine:
        yield engine


def saying(text):
    return {"max_tokens": 200, "sampling": SamplingConfig(temp=0, grammar=says(text))}


def test_whole_and_in_additions(engine):
    chat = engine.chat(USER, **saying(REASONED))
    message = chat.message()
    assert message["reasoning_content"].strip() == "Is it so?"
    assert (message["role"], message["content"]) == ("assistant", "Yup, it is")
    assert chat.generation.reason == "stop"
    assert chat.generation.stats.generated_tokens == len(chat.generation.tokens) > 5
    deltas = list(engine.chat(USER, **saying(REASONED)))
    assert "".join(delta.reasoning for delta in deltas) == message["reasoning_content"]
    assert "".join(delta.content for delta in deltas) == message["content"]

    async def read():
        return [delta async for delta in engine.chat_async(USER, **saying(REASONED))]

    assert "".join(delta.content for delta in asyncio.run(read())) == message["content"]


def test_an_answer_goes_on_from_the_last_one(engine):
    messages = [*USER, engine.chat(USER, **saying("Yup")).message(), {"role": "user", "content": "more"}]
    chat = engine.chat(messages, **saying("Nope"))
    assert chat.message()["content"] == "Nope"
    assert chat.generation.stats.cached_tokens > 10


def test_stop_strings_count_in_the_answer(engine):
    chat = engine.chat(USER, stop=("it",), **saying(REASONED))
    message = chat.message()
    assert (message["reasoning_content"].strip(), message["content"]) == ("Is it so?", "Yup, ")
    assert chat.generation.reason == chat.generation.stats.reason == "stop"
    assert list(chat) == []
    assert engine.chat(USER, **saying("Yup")).message()["content"] == "Yup", "the engine is free again"


def test_tools_and_schemas(engine):
    said = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 22}}\n</tool_call>'
    message = engine.chat(USER, tools=[ADD], **saying(said)).message()
    [call] = message["tool_calls"]
    assert (call["type"], call["function"]["name"]) == ("function", "add")
    assert json.loads(call["function"]["arguments"]) == {"a": 1, "b": 22}
    assert message["content"] is None
    schema = {"type": "object", "properties": {"n": {"const": 3}}, "required": ["n"]}
    greedy = SamplingConfig(temp=0)
    message = engine.chat(USER, 100, json_schema=schema, thinking=False, sampling=greedy).message()
    assert json.loads(message["content"])["n"] == 3


def test_cancel(engine):
    chat = engine.chat(USER, **saying("Yup, " * 60))
    next(chat)
    chat.cancel()
    assert 0 < len(chat.message()["content"]) < 300
    assert chat.generation.reason == "cancelled"


def test_what_is_refused(engine):
    with pytest.raises(InputError, match="refuses these messages"):
        engine.chat([{"role": "user", "content": 3}])
    with pytest.raises(InputError, match="raise --ctx"):
        engine.chat([{"role": "user", "content": "word " * 600}])
    with pytest.raises(InputError, match="sees no images"):
        engine.chat([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}])


def test_a_model_without_a_template(tiny_model):
    path = tiny_model("qwen3moe", n_vocab=288)
    with Engine(EngineConfig(path, device="cpu", threads=1, ctx=2048)) as engine:
        message = engine.chat(USER, **saying("Yup")).message()
        assert message == {"role": "assistant", "content": "Yup"}
        message = engine.chat(
            USER, 400, tools=[ADD], tool_choice="required", sampling=SamplingConfig(temp=0)
        ).message()
        assert message["tool_calls"][0]["function"]["name"] == "add"

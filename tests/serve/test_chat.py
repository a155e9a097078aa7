"""Chat requests work through OpenAI's own client: reasoning, tools, schemas, and refusals.

A grammar makes the model generate a given text, so that its parsed form is known beforehand.
"""

from __future__ import annotations

import json

import openai
import pytest

from tests.chat.templates import ADD, THINKING
from tests.cli.conftest import environment
from tests.serve.conftest import Server

USER = [{"role": "user", "content": "hello"}]
GREEDY = {"model": "demo", "temperature": 0, "max_tokens": 120}
REASONED = "<think>\nhmm, so\n</think>\n\nhi there"


@pytest.fixture(scope="module")
def client(thinking_server):
    return thinking_server.client()


def saying(text: str, **more: object) -> dict:
    return {"extra_body": {"grammar": f"root ::= {json.dumps(text)}", **more}}


def chat(client: openai.OpenAI, messages=USER, **more):
    return client.chat.completions.create(messages=messages, **{**GREEDY, **more})


def streamed(client: openai.OpenAI, **more):
    """Return all chunks, and the deltas' texts joined by field."""
    chunks = list(chat(client, stream=True, **more))
    texts: dict[str, str] = {}
    for chunk in chunks:
        for choice in chunk.choices:
            for field in ("reasoning_content", "content"):
                texts[field] = texts.get(field, "") + (getattr(choice.delta, field, None) or "")
    return chunks, texts


def test_reasoning_is_no_content(client):
    choice = chat(client, **saying(REASONED)).choices[0]
    assert choice.message.content == "hi there"
    assert choice.message.reasoning_content.strip() == "hmm, so"
    assert choice.finish_reason == "stop"
    chunks, _ = streamed(client, **saying(REASONED))
    assert all(chunk.choices for chunk in chunks), "usage is streamed on request alone"


def test_a_stream_tells_reasoning_apart(client):
    chunks, texts = streamed(client, stream_options={"include_usage": True}, **saying(REASONED))
    assert texts["content"] == "hi there"
    assert texts["reasoning_content"].strip() == "hmm, so"
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "stop"
    usage = chunks[-1].usage
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert usage.completion_tokens > 8
    assert len({chunk.id for chunk in chunks}) == 1


def test_the_template_makes_tokens_of_what_a_request_has(client):
    """The count of the prompt's tokens shows it."""
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1, "b": 2}'}}
    calls = {"role": "assistant", "content": None, "tool_calls": [call]}
    result = {"role": "tool", "tool_call_id": "c1", "content": "3"}
    off = {"extra_body": {"chat_template_kwargs": {"enable_thinking": False}}}
    plain, offered, with_result, unthinking = (
        chat(client, messages, max_tokens=2, **more).usage.prompt_tokens
        for messages, more in (
            (USER, {}), (USER, {"tools": [ADD]}), ([*USER, calls, result], {"tools": [ADD]}), (USER, off),
        )
    )  # fmt: skip
    assert plain < offered < with_result - 20
    assert unthinking > plain, "the template then opens and closes the reasoning in the prompt"


def test_a_schema(client):
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"],
              "additionalProperties": False}  # fmt: skip
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    more = {"extra_body": {"chat_template_kwargs": {"enable_thinking": False}}}
    answer = chat(client, response_format=form, **more).choices[0]
    assert set(json.loads(answer.message.content)) == {"ok"}
    assert answer.finish_reason == "stop"


def begun(content: str, **more: str) -> list[dict]:
    return [*USER, {"role": "assistant", "content": content, **more}]


def test_an_answer_that_has_begun_goes_on(client):
    """It may have what was begun, as llama-server's has."""
    asked = {"messages": begun("Well, "), **saying("met")}
    whole = chat(client, **asked).choices[0].message.content
    assert {whole, streamed(client, **asked)[1]["content"]} <= {"met", "Well, met"}


def test_without_prefill(tmp_path):
    with Server(tmp_path, "--ctx", "1024", "--no-prefill-assistant", template=THINKING) as server:
        client = server.client()
        two = [*begun("a"), {"role": "assistant", "content": "b"}]
        whole = chat(client, two, max_tokens=1).usage.prompt_tokens
        assert whole > chat(client, begun("a"), max_tokens=1).usage.prompt_tokens


def test_completions_are_not_touched(client):
    """A completion after a chat has none of the chat's settings."""
    bare = {"model": "demo", "prompt": "def add(a, b):\n", "temperature": 0, "max_tokens": 16}
    before = client.completions.create(**bare).choices[0].text
    chat(client, tools=[ADD], tool_choice="required")
    assert client.completions.create(**bare).choices[0].text == before


def test_the_servers_sampling_holds_where_a_request_does_not_say(client):
    bare = {"model": "demo", "prompt": "def add(a, b):\n", "max_tokens": 24}

    def text(**more: object) -> str:
        return client.completions.create(**bare, **more).choices[0].text

    usual = text()
    assert usual == text(temperature=0, extra_body={"repeat_penalty": 1.3})
    assert usual != text(temperature=0, extra_body={"repeat_penalty": 1})


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("--chat-template", "{% if %}"), "chat template cannot be used"),
        (("--chat-template-file", "nowhere.jinja"), "nowhere.jinja"),
        (("--chat-template-kwargs", "[1]"), "object"), (("--reasoning-budget", "-2"), "-1 to"),
    ],
)  # fmt: skip
def test_options_that_cannot_be(programs, tmp_path, options, named):
    done = programs.run("spac", ["serve", "--port", "0", *options], tmp_path, environment(), None)
    said = done.stderr.decode()
    assert (done.returncode, "Traceback" in said) == (2, False)
    assert named in said.splitlines()[-1]

"""OpenAI's Responses work through its own client: items, events, tools, reasoning, schemas."""

from __future__ import annotations

import json

import pytest

from tests.serve.conftest import wait_until
from tests.serve.test_messages import CALLED, CALLED_TWICE, REASONED, SUM, saying

GREEDY = {"model": "demo", "temperature": 0, "max_output_tokens": 250, "input": "hello"}
ADD = {"type": "function", "name": "add", "description": "the sum", "parameters": SUM, "strict": False}
OFF = {"extra_body": {"reasoning_budget": 0}}


@pytest.fixture(scope="module")
def client(thinking_server):
    return thinking_server.client()


def ask(client, **more):
    return client.responses.create(**{**GREEDY, **more})


def test_reasoning_and_text_are_items(client):
    made = ask(client, instructions="be brief", metadata={"a": "b"}, **saying(REASONED))
    reasoning, message = made.output
    assert (reasoning.type, reasoning.content[0].text.strip()) == ("reasoning", "hmm, so")
    assert (message.type, message.status, made.output_text) == ("message", "completed", "hi there")
    assert (made.status, made.model, made.error, made.incomplete_details) == ("completed", "demo", None, None)
    assert (made.instructions, made.metadata) == ("be brief", {"a": "b"})
    assert 0 < made.usage.output_tokens_details.reasoning_tokens < made.usage.output_tokens
    assert made.usage.total_tokens == made.usage.input_tokens + made.usage.output_tokens


@pytest.mark.parametrize(
    "asked",
    [
        saying(REASONED),
        {**saying(CALLED_TWICE), "tools": [ADD]},
        {**saying(REASONED), "max_output_tokens": 9},
    ],
)
def test_a_stream_is_the_whole_answer(client, asked):
    whole, events = ask(client, **asked), list(ask(client, stream=True, **asked))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    made = events[-1].response
    assert events[-1].type == f"response.{whole.status}"
    assert whole.status == ("incomplete" if "max_output_tokens" in asked else "completed")

    def said(response):
        items = [item.to_dict() for item in response.output]
        return [{key: value for key, value in item.items() if key not in ("id", "call_id")} for item in items]

    assert said(made) == said(whole)
    assert made.incomplete_details == whole.incomplete_details
    assert made.usage.output_tokens == whole.usage.output_tokens
    deltas = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert deltas == whole.output_text


def test_the_clients_own_reading_of_a_stream(client):
    with client.responses.stream(**{**GREEDY, "tools": [ADD]}, **saying(CALLED)) as stream:
        kinds = [event.type for event in stream]
        made = stream.get_final_response()
    assert kinds.count("response.function_call_arguments.delta") >= 1
    assert json.loads(made.output[-1].arguments) == {"a": 1, "b": 22}


def test_tools(client):
    made = ask(client, tools=[ADD], **saying(CALLED))
    call = made.output[-1]
    assert (call.type, call.name, json.loads(call.arguments)) == ("function_call", "add", {"a": 1, "b": 22})
    history = [{"role": "user", "content": "hello"}, *[item.to_dict() for item in made.output],
               {"type": "function_call_output", "call_id": call.call_id, "output": "23"}]  # fmt: skip
    with_result = ask(client, input=history, tools=[ADD], max_output_tokens=2).usage.input_tokens
    assert with_result > ask(client, tools=[ADD], max_output_tokens=2).usage.input_tokens + 20


def test_tools_that_run_elsewhere_are_not_offered(client):
    usual = ask(client, max_output_tokens=2).usage.input_tokens
    assert ask(client, tools=[{"type": "web_search"}], max_output_tokens=2).usage.input_tokens == usual


def test_a_schema(client):
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"],
              "additionalProperties": False}  # fmt: skip
    form = {"format": {"type": "json_schema", "name": "x", "schema": schema, "strict": True}}
    assert set(json.loads(ask(client, text=form, **OFF).output_text)) == {"ok"}


def test_reasoning_is_turned_off(client):
    usual = ask(client, max_output_tokens=2).usage.input_tokens
    assert ask(client, max_output_tokens=2, reasoning={"effort": "none"}).usage.input_tokens > usual


def test_a_client_that_leaves_its_stream(thinking_server):
    left = thinking_server.metric("spac_requests_total", path="/v1/responses", status="499")
    long = {**GREEDY, "max_output_tokens": 900, "extra_body": {"logit_bias": {"0": -100}}}
    stream = thinking_server.client().responses.create(stream=True, **long)
    assert next(iter(stream)).type == "response.created"
    stream.close()
    wait_until(lambda: not thinking_server.health()["running"])
    wait_until(
        lambda: thinking_server.metric("spac_requests_total", path="/v1/responses", status="499") == left + 1
    )

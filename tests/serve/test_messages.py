"""Anthropic's Messages work through its own client: blocks, events, tools, reasoning, and refusals."""

from __future__ import annotations

import json

import anthropic
import pytest

from tests.serve.conftest import KEY, Long, in_thread, wait_until

USER = [{"role": "user", "content": "hello"}]
GREEDY = {"model": "demo", "max_tokens": 250, "messages": USER}
REASONED = "<think>\nhmm, so\n</think>\n\nhi there"
CALLED = '<think>x</think><tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 22}}\n</tool_call>'
CALLED_TWICE = CALLED.replace("</think>", "</think>let me see") + CALLED.partition("</think>")[2].replace(
    "22", "3"
)
SUM = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
    "required": ["a", "b"],
}
ADD = {"name": "add", "description": "the sum", "input_schema": SUM}


@pytest.fixture(scope="module")
def client(thinking_server):
    return thinking_server.anthropic()


def saying(text: str) -> dict:
    return {"extra_body": {"grammar": f"root ::= {json.dumps(text)}"}}


def ask(client, **more):
    return client.messages.create(**{**GREEDY, **more})


def streamed(client, **more):
    """Return the events, and the message that the client makes of them."""
    with client.messages.stream(**{**GREEDY, **more}) as stream:
        events = [event for event in stream if event.type in EVENTS]
        return events, stream.get_final_message()


EVENTS = {"message_start", "content_block_start", "content_block_delta", "content_block_stop",
          "message_delta", "message_stop"}  # fmt: skip


def test_reasoning_and_text_are_blocks(client):
    made = ask(client, **saying(REASONED))
    thinking, text = made.content
    assert (thinking.type, thinking.thinking.strip(), thinking.signature) == ("thinking", "hmm, so", "")
    assert (text.type, text.text) == ("text", "hi there")
    assert (made.role, made.model, made.stop_reason, made.stop_sequence) == (
        "assistant",
        "demo",
        "end_turn",
        None,
    )
    assert made.usage.output_tokens > 8
    assert made.usage.input_tokens + made.usage.cache_read_input_tokens > 3


@pytest.mark.parametrize(
    "asked",
    [saying(REASONED), {**saying(CALLED), "tools": [ADD]}, {**saying(CALLED_TWICE), "tools": [ADD]},
     {**saying(REASONED), "max_tokens": 9},
     {**saying(REASONED), "stop_sequences": ["here"]}, {"max_tokens": 9}],
)  # fmt: skip
def test_a_stream_is_the_whole_answer(client, asked):
    whole, (events, made) = ask(client, **asked), streamed(client, **asked)
    assert [event.type for event in events][:1] == ["message_start"]
    assert [event.type for event in events][-2:] == ["message_delta", "message_stop"]

    def said(message):
        blocks = [block.to_dict() for block in message.content]
        return [{key: value for key, value in block.items() if key != "id"} for block in blocks]

    assert said(made) == said(whole)
    assert (made.stop_reason, made.stop_sequence) == (whole.stop_reason, whole.stop_sequence)
    assert made.usage.output_tokens == whole.usage.output_tokens
    sizes = [usage.input_tokens + usage.cache_read_input_tokens for usage in (made.usage, whole.usage)]
    assert sizes[0] == sizes[1] == events[0].message.usage.input_tokens


def test_tools(client):
    made = ask(client, tools=[ADD], **saying(CALLED))
    assert made.stop_reason == "tool_use"
    use = made.content[-1]
    assert (use.type, use.name, use.input) == ("tool_use", "add", {"a": 1, "b": 22})
    # The server reads its own answer back. The prompt's length shows how much it read.
    answer = {"role": "assistant", "content": [block.to_dict() for block in made.content]}
    result = {"type": "tool_result", "tool_use_id": use.id, "content": "23"}
    history = [*USER, answer, {"role": "user", "content": [result]}]
    count = client.messages.count_tokens
    bare = count(model="demo", messages=USER, tools=[ADD]).input_tokens
    assert count(model="demo", messages=history, tools=[ADD]).input_tokens > bare + 20
    assert ask(client, messages=history, tools=[ADD], max_tokens=2).content


def test_two_calls(client):
    made = ask(client, tools=[ADD], **saying(CALLED_TWICE))
    assert [block.type for block in made.content] == ["thinking", "text", "tool_use", "tool_use"]
    assert [block.input["b"] for block in made.content[2:]] == [22, 3]
    assert made.content[2].id != made.content[3].id


def test_the_choice_of_tools(client):
    """If a request names a tool, only this tool is offered."""

    def size(**more):
        return client.messages.count_tokens(model="demo", messages=USER, **more).input_tokens

    other = {**ADD, "name": "subtract"}
    assert size(tools=[ADD, other], tool_choice={"type": "tool", "name": "add"}) == size(tools=[ADD])
    assert size(tools=[ADD, other]) > size(tools=[ADD]) > size()
    with pytest.raises(anthropic.BadRequestError, match="no tool is called 'nope'") as refused:
        size(tools=[ADD], tool_choice={"type": "tool", "name": "nope"})
    assert refused.value.body["error"]["type"] == "invalid_request_error"


def test_the_count_is_that_of_the_prompt(thinking_server, client):
    generated = thinking_server.metric("spac_tokens_total", kind="generated")
    asked = {"model": "demo", "messages": USER, "system": "be brief", "tools": [ADD]}
    counted = client.messages.count_tokens(**asked).input_tokens
    assert thinking_server.metric("spac_tokens_total", kind="generated") == generated
    made = client.messages.create(max_tokens=1, **asked).usage
    assert counted == made.input_tokens + made.cache_read_input_tokens
    assert counted > client.messages.count_tokens(model="demo", messages=USER).input_tokens


def test_what_is_still_in_the_context_counts_as_cached(client):
    long = [{"role": "user", "content": "one two three " * 20}]
    total = client.messages.count_tokens(model="demo", messages=long).input_tokens
    ask(client, messages=long, max_tokens=1)
    again = ask(client, messages=long, max_tokens=1).usage
    assert again.cache_read_input_tokens > total - 3
    assert again.input_tokens == total - again.cache_read_input_tokens


@pytest.mark.parametrize("stops", [["there"], ["zebra", "the"], ["i "]])
def test_stop_sequences(client, stops):
    for made in (ask(client, stop_sequences=stops, **saying(REASONED)),
                 streamed(client, stop_sequences=stops, **saying(REASONED))[1]):  # fmt: skip
        assert made.stop_reason == "stop_sequence"
        assert made.stop_sequence == stops[-1]
        assert made.content[-1].text == "hi there".partition(stops[-1])[0]
    for made in (ask(client, stop_sequences=["there you"], **saying(REASONED)),
                 streamed(client, stop_sequences=["there you"], **saying(REASONED))[1]):  # fmt: skip
        assert (made.content[-1].text, made.stop_reason) == ("hi there", "end_turn")


def test_reasoning_is_turned_off_and_limited(client):
    usual = client.messages.count_tokens(model="demo", messages=USER).input_tokens
    off = {"model": "demo", "messages": USER, "thinking": {"type": "disabled"}}
    # The template opens and closes the reasoning.
    assert client.messages.count_tokens(**off).input_tokens > usual
    made = ask(client, thinking={"type": "enabled", "budget_tokens": 1024}, **saying(REASONED))
    assert made.content[0].type == "thinking"
    limited = ask(client, thinking={"type": "enabled", "budget_tokens": 1})
    assert sum(len(block.thinking) for block in limited.content if block.type == "thinking") < 20


def test_a_schema(client):
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"],
              "additionalProperties": False}  # fmt: skip
    form = {"format": {"type": "json_schema", "schema": schema}}
    made = ask(client, output_config=form, thinking={"type": "disabled"})
    assert set(json.loads(made.content[-1].text)) == {"ok"}


def test_beta_requests_are_served_too(client):
    made = client.beta.messages.create(betas=["unheard-of"], **{**GREEDY, "max_tokens": 2})
    assert made.usage.output_tokens == 2


@pytest.mark.parametrize(
    ("header", "status"),
    [({"x-api-key": KEY}, 200), ({"authorization": f"Bearer {KEY}"}, 200), ({"x-api-key": "x"}, 401),
     ({"x-api-key": KEY, "authorization": "Bearer x"}, 200), ({"authorization": f"Basic {KEY}"}, 401)],
)  # fmt: skip
def test_where_the_key_is(thinking_server, header, status):
    connection = thinking_server.connection()
    body = json.dumps({"model": "demo", "messages": USER})
    connection.request("POST", "/v1/messages/count_tokens", body, header)
    assert connection.getresponse().status == status
    connection.close()


def test_a_wrong_key(thinking_server):
    with pytest.raises(anthropic.AuthenticationError, match="API key") as refused:
        ask(thinking_server.anthropic("x"))
    assert refused.value.body["error"]["type"] == "authentication_error"


def test_a_client_that_leaves_its_stream(thinking_server):
    left = thinking_server.metric("spac_requests_total", path="/v1/messages", status="499")
    before = thinking_server.metric("spac_tokens_total", kind="generated")
    long = {**GREEDY, "max_tokens": 900, "extra_body": {"logit_bias": {"0": -100}}}
    stream = thinking_server.anthropic().messages.create(stream=True, **long)
    assert next(iter(stream)).type == "message_start"
    stream.close()
    wait_until(lambda: not thinking_server.health()["running"])
    assert thinking_server.metric("spac_tokens_total", kind="generated") - before < 900
    assert thinking_server.metric("spac_requests_total", path="/v1/messages", status="499") == left + 1
    assert ask(thinking_server.anthropic(), max_tokens=2).usage.output_tokens == 2


def test_it_waits_in_the_same_queue(server):
    long = Long(server)
    thread, results = in_thread(lambda: ask(server.anthropic(), max_tokens=3))
    wait_until(lambda: server.health()["queue"] == 1)
    assert not results
    long.leave()
    thread.join(60)
    assert results[0].usage.output_tokens == 3

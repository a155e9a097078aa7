"""Chats in other interfaces: a stream has the same content as a whole answer, block by block, in order."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from anthropic.types import Message, RawMessageStreamEvent
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from spac.errors import InputError, SpacError
from spac.serve import messages, responses
from spac.serve.pieces import events_of as encoded_events
from spac.serve.refusal import GONE, Refusal

ASKED = {"model": "demo", "input": "x", "tools": [{"type": "function", "name": "f"}]}
USAGE = {
    "prompt_tokens": 9, "completion_tokens": 5, "total_tokens": 14,
    "prompt_tokens_details": {"cached_tokens": 4}, "completion_tokens_details": {"reasoning_tokens": 2},
}  # fmt: skip
HEAD = {"id": "chatcmpl-0", "created": 7, "model": "demo"}
TEXTS = st.text(min_size=1, max_size=6)
KINDS = ("reasoning_content", "content")
MESSAGE_EVENT, RESPONSE_EVENT = TypeAdapter(RawMessageStreamEvent), TypeAdapter(ResponseStreamEvent)


def cut(text, at):
    """Return the text in pieces."""
    ends = [0, *sorted({min(end, len(text)) for end in at}), len(text)]
    return [text[a:b] for a, b in pairwise(ends) if a < b]


@st.composite
def chats(draw):
    """Draw a chat completion, and the deltas that make it up."""
    message: dict[str, Any] = {"role": "assistant", "content": ""}
    deltas = [{"role": "assistant", "content": ""}]
    cuts = st.lists(st.integers(0, 30), max_size=3)
    for kind in KINDS:
        if draw(st.booleans()):
            message[kind] = draw(TEXTS)
            deltas += [{kind: part} for part in cut(message[kind], draw(cuts))]
    calls = draw(st.lists(st.tuples(TEXTS, st.dictionaries(TEXTS, TEXTS, max_size=2)), max_size=3))
    for index, (name, arguments) in enumerate(calls):
        first, *others = ["", *cut(json.dumps(arguments), draw(cuts))]
        call = {"id": f"call_{index}", "type": "function"}
        message.setdefault("tool_calls", []).append(
            {**call, "function": {"name": name, "arguments": json.dumps(arguments)}}
        )
        deltas.append(
            {"tool_calls": [{**call, "index": index, "function": {"name": name, "arguments": first}}]}
        )
        deltas += [{"tool_calls": [{"index": index, "function": {"arguments": part}}]} for part in others]
    reason = draw(st.sampled_from(["length", "tool_calls" if calls else "stop"]))
    end = {"finish_reason": reason, "stop_reason": draw(st.sampled_from([None, "END"]))}
    return {**HEAD, "choices": [{"message": message, **end}], "usage": USAGE}, chunks_of(deltas, end)


def chunks_of(deltas, end):
    chunks = [{**HEAD, "choices": [{"delta": delta, "finish_reason": None}]} for delta in deltas]
    chunks.append({**HEAD, "choices": [{"delta": {}, **end}]})
    chunks[0]["usage"] = {"prompt_tokens": 9, "completion_tokens": 0}
    return [*chunks, {**HEAD, "choices": [], "usage": USAGE}]


def events_of(translator, chunks):
    lines = [event.decode().splitlines() for event in encoded_events(translator, chunks)]
    assert all(len(each) == 3 and each[2] == "" for each in lines)
    events = [json.loads(data.removeprefix("data: ")) for _, data, _ in lines]
    assert [name.removeprefix("event: ") for name, _, _ in lines] == [event["type"] for event in events]
    return events


# Messages


def message_of(events):
    """Return the message that a client makes of the events. Assert their order."""
    first, *blocks, delta, last = events
    assert (first["type"], delta["type"], last["type"]) == ("message_start", "message_delta", "message_stop")
    message = {**first["message"], "content": []}
    content, is_open = message["content"], False
    for event in blocks:
        if event["type"] == "content_block_start":
            assert not is_open
            assert event["index"] == len(content)
            content.append({**event["content_block"], "json": ""})
            is_open = True
            continue
        assert is_open
        assert event["index"] == len(content) - 1
        if event["type"] == "content_block_stop":
            is_open = False
            continue
        (kind, key), (_, more) = event["delta"].items()
        assert kind == "type"
        into = {"input_json_delta": "json", "text_delta": "text", "thinking_delta": "thinking"}
        content[-1][into.get(key, "signature")] += more
    assert not is_open
    for block in content:
        arguments = block.pop("json")
        if block["type"] == "tool_use":
            block["input"] = json.loads(arguments)
    return {**message, **delta["delta"], "usage": delta["usage"]}


@settings(deadline=None)
@given(chats())
def test_a_streamed_message_is_the_whole_one(chat):
    made, chunks = chat
    events = events_of(messages.MessageEvents({}), chunks)
    for event in events:
        MESSAGE_EVENT.validate_python(event)
    whole = messages.answer({}, made)
    Message.model_validate(whole)
    assert message_of(events) == whole
    kinds = [block["type"] for block in whole["content"]]
    assert kinds == sorted(kinds, key=["thinking", "text", "tool_use"].index)
    end = made["choices"][0]
    reasons = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}[end["finish_reason"]]
    assert whole["stop_reason"] == ("stop_sequence" if end["stop_reason"] else reasons)
    assert whole["stop_sequence"] == end["stop_reason"]
    assert whole["usage"] == {"input_tokens": 5, "cache_creation_input_tokens": 0,
                              "cache_read_input_tokens": 4, "output_tokens": 5}  # fmt: skip
    assert events[0]["message"]["usage"]["input_tokens"] == 9


MIXED = st.lists(st.tuples(st.sampled_from(KINDS), TEXTS), max_size=8)


@given(MIXED)
def test_in_whatever_order_it_comes_each_block_ends(parts):
    chunks = chunks_of([{kind: text} for kind, text in parts] or [{}], {"finish_reason": "stop"})
    content = message_of(events_of(messages.MessageEvents({}), chunks))["content"]
    output = output_of(events_of(responses.ResponseEvents(ASKED), chunks))
    for kind, key, ours in (("content", "text", "message"), ("reasoning_content", "thinking", "reasoning")):
        whole = "".join(text for each, text in parts if each == kind)
        assert "".join(block.get(key, "") for block in content) == whole
        items = [item["content"][0]["text"] for item in output if item["type"] == ours]
        assert "".join(items) == whole


def test_a_call_that_was_cut_is_left_out():
    """A call without all of its arguments is not made."""
    function = {"name": "f", "arguments": '{"a": '}
    choice = {"message": {"tool_calls": [{"id": "1", "function": function}]}, "finish_reason": "length"}
    made = {**HEAD, "choices": [choice], "usage": USAGE}
    assert messages.answer({}, made)["content"] == []
    assert responses.answer(ASKED, made)["output"][0]["status"] == "incomplete"
    choice["finish_reason"] = "tool_calls"  # a call that the model ended by itself is kept
    assert messages.answer({}, made)["content"][0]["input"] == {}


@pytest.mark.parametrize(
    ("status", "kind"),
    [(400, "invalid_request_error"), (401, "authentication_error"), (404, "not_found_error"),
     (405, "invalid_request_error"), (429, "rate_limit_error"), (500, "api_error"),
     (503, "overloaded_error")],
)  # fmt: skip
def test_faults_in_anthropics_words(status, kind):
    answer = messages.error(Refusal(status, "so\nit is"))
    assert answer == {"type": "error", "error": {"type": kind, "message": "so it is"}}


# Responses


def output_of(events):
    """Return the output items that a client makes of a response's events. Assert their order."""
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert [event["type"] for event in events[:2]] == ["response.created", "response.in_progress"]
    items, open_item, part = [], None, None
    for event in events[2:-1]:
        kind = event["type"].removeprefix("response.")
        if kind == "output_item.added":
            assert open_item is None
            open_item = {**event["item"]}
            assert open_item["status"] == "in_progress"
        assert event["output_index"] == len(items)
        assert event.get("item_id", open_item["id"]) == open_item["id"]
        if kind == "content_part.added":
            part = {**event["part"]}
            open_item["content"] = [part]
        elif kind == "function_call_arguments.delta":
            open_item["arguments"] += event["delta"]
        elif kind.endswith(".delta"):
            part["text"] += event["delta"]
        elif kind == "function_call_arguments.done":
            assert event["arguments"] == open_item["arguments"]
        elif kind.endswith("text.done"):
            assert event["text"] == part["text"]
        elif kind == "content_part.done":
            assert event["part"] == part
            part = None
        elif kind == "output_item.done":
            assert part is None
            assert event["item"] == {**open_item, "status": event["item"]["status"]}
            items.append(event["item"])
            open_item = None
    assert open_item is None
    return items


@settings(deadline=None)
@given(chats())
def test_a_streamed_response_is_the_whole_one(chat):
    made, chunks = chat
    events = events_of(responses.ResponseEvents(ASKED), chunks)
    for event in events:
        RESPONSE_EVENT.validate_python(event)
    whole = responses.answer(ASKED, made)
    Response.model_validate(whole)
    assert output_of(events) == whole["output"]
    assert events[-1]["response"] == whole
    is_cut = made["choices"][0]["finish_reason"] == "length"
    assert whole["status"] == ("incomplete" if is_cut else "completed")
    assert events[-1]["type"] == f"response.{whole['status']}"
    assert whole["incomplete_details"] == ({"reason": "max_output_tokens"} if is_cut else None)
    assert whole["usage"]["total_tokens"] == 14
    assert whole["usage"]["output_tokens_details"] == {"reasoning_tokens": 2}


def test_functions_of_namespaces():
    """Functions are called by both names, and kept apart."""
    inner = [
        {"type": "function", "name": "f", "parameters": {"type": "object"}},
        {"type": "custom", "name": "g"},
    ]
    request = {**ASKED, "tools": [*ASKED["tools"], {"type": "namespace", "name": "n", "tools": inner}]}
    call = {"type": "function_call", "call_id": "1", "namespace": "n", "name": "f", "arguments": "{}"}
    asked = responses.chat({**request, "input": [call]})
    assert [tool["function"]["name"] for tool in asked["tools"]] == ["f", "n__f"]
    assert asked["messages"][0]["tool_calls"][0]["function"]["name"] == "n__f"
    calls = [{"id": "1", "function": {"name": name, "arguments": "{}"}} for name in ("f", "n__f")]
    choice = {"message": {"tool_calls": calls}, "finish_reason": "tool_calls"}
    output = responses.answer(request, {**HEAD, "choices": [choice], "usage": USAGE})["output"]
    assert [(item["name"], item.get("namespace")) for item in output] == [("f", None), ("f", "n")]


# Faults of streams


TRANSLATORS = [lambda: messages.MessageEvents({}), lambda: responses.ResponseEvents(ASKED)]


def broken(n, error):
    yield from chunks_of([{"content": "a"}] * n, {"finish_reason": "stop"})[:n]
    if error is not None:
        raise error


@pytest.mark.parametrize("translator", TRANSLATORS)
@pytest.mark.parametrize(
    ("error", "codes"),
    [
        (SpacError("gone"), ("api_error", "server_error")),
        (InputError("gone"), ("invalid_request_error", "invalid_prompt")),
    ],
)
def test_a_fault_after_the_beginning_is_reported(translator, error, codes):
    last = events_of(translator(), broken(2, error))[-1]
    found = last["error"]["type"] if last["type"] == "error" else last["response"]["error"]["code"]
    assert found in codes
    assert "gone" in json.dumps(last)
    assert "broke off" in json.dumps(events_of(translator(), broken(2, None))[-1])


@pytest.mark.parametrize("translator", TRANSLATORS)
def test_a_fault_before_it_is_raised(translator):
    with pytest.raises(SpacError, match="gone"):
        events_of(translator(), broken(0, SpacError("gone")))
    with pytest.raises(Refusal) as refusal:  # a fault without a client to report to
        events_of(translator(), broken(1, Refusal(GONE, "left")))
    assert refusal.value.status == GONE


@pytest.mark.parametrize("translator", TRANSLATORS)
def test_a_call_that_goes_on_too_late_is_a_fault(translator):
    calls = [{"index": index, "id": "1", "function": {"name": "f", "arguments": "{"}} for index in (0, 1, 0)]
    chunks = chunks_of([{"tool_calls": [call]} for call in calls], {"finish_reason": "tool_calls"})
    assert "went on" in json.dumps(events_of(translator(), chunks)[-1])

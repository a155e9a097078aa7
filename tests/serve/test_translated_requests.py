"""Chats in other interfaces: a request becomes the right chat request, and bad values are refused."""

from __future__ import annotations

import copy
import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spac.serve import messages, responses
from spac.serve.checks import checked
from spac.serve.doors import DOORS, translated
from spac.serve.fields import PASSED
from spac.serve.refusal import Refusal
from tests.serve.test_translated_answers import ASKED, chunks_of, events_of


def text(content):
    return {"type": "text", "text": content}


ANTHROPIC_TOOL = {"name": "f", "description": "d", "input_schema": {"type": "object"}}
USE = {"type": "tool_use", "id": "t1", "name": "f", "input": {"a": None}}
CALL = {"id": "t1", "type": "function", "function": {"name": "f", "arguments": '{"a": null}'}}
USER = {"role": "user", "content": "u"}
FOLLOWED = {"type": "json_schema", "json_schema": {"name": "answer", "schema": {"type": "object"}}}


def result(content, **more):
    return {"type": "tool_result", "tool_use_id": "t1", "content": content, **more}


IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
SEEN = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
BARE = {"type": "tool_result", "tool_use_id": "t1"}


def tool(content):
    return {"role": "tool", "tool_call_id": "t1", "content": content}


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ([USER], [USER]),
        ([{"role": "user", "content": [text("a"), {**text("b"), "cache_control": {"type": "ephemeral"}}]}],
         [{"role": "user", "content": "a\nb"}]),
        ([USER, {"role": "assistant", "content": [text("x"), USE]},
          {"role": "user", "content": [result([text("3"), text("4")]), text("go on")]}],
         [USER, {"role": "assistant", "content": "x", "tool_calls": [CALL]}, tool("3\n4"),
          {"role": "user", "content": "go on"}]),
        ([{"role": "user", "content": [text("a"), result("no", is_error=True), BARE, text("b")]}],
         [{"role": "user", "content": "a"}, tool("Error: no"), tool(""), {"role": "user", "content": "b"}]),
        ([{"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": "s"},
                                            {"type": "redacted_thinking", "data": "x"}, text("x")]}],
         [{"role": "assistant", "content": "x", "reasoning_content": "hm"}]),
        ([USER, USER, {"role": "system", "content": "s"}], [{"role": "user", "content": "u\n\nu\n\ns"}]),
        ([{"role": "assistant", "content": []}, USER], [{"role": "assistant", "content": ""}, USER]),
        ([{"role": "user", "content": [IMAGE, text("a")]}, USER],
         [{"role": "user", "content": [SEEN, text("a"), text("u")]}]),
        ([{"role": "user", "content": [result([text("3"), IMAGE]), result("4"), text("b")]}],
         [tool("3"), tool("4"), {"role": "user", "content": [SEEN, text("b")]}]),
        ([{"role": "user", "content": [result([IMAGE], is_error=True)]},
          {"role": "assistant", "content": "x"}],
         [tool("Error:"), {"role": "user", "content": [SEEN]}, {"role": "assistant", "content": "x"}]),
    ],
)  # fmt: skip
def test_messages_become_a_chat(asked, expected):
    assert messages.count({"messages": asked})["messages"] == expected


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"system": "s", "max_tokens": 3}, {"max_tokens": 3}),
        ({"tools": [ANTHROPIC_TOOL]}, {"tools": [{"type": "function", "function": {
            "name": "f", "description": "d", "parameters": {"type": "object"}}}], "tool_choice": "auto"}),
        ({"tool_choice": {"type": "any", "disable_parallel_tool_use": True}},
         {"tool_choice": "required", "parallel_tool_calls": False}),
        ({"tool_choice": {"type": "tool", "name": "f"}},
         {"tool_choice": {"type": "function", "function": {"name": "f"}}}),
        ({"tool_choice": {"type": "none", "disable_parallel_tool_use": None}}, {"tool_choice": "none"}),
        ({"stop_sequences": ["x"], "temperature": 0.5, "top_k": 3, "top_p": 0.2, "seed": 1},
         {"stop": ["x"], "temperature": 0.5, "top_k": 3, "top_p": 0.2, "seed": 1}),
        ({"thinking": {"type": "enabled", "budget_tokens": 9}},
         {"reasoning_budget": 9, "chat_template_kwargs": {"enable_thinking": True}}),
        ({"thinking": {"type": "adaptive"}, "output_config": {"effort": "max"}},
         {"chat_template_kwargs": {"enable_thinking": True}, "reasoning_effort": "high"}),
        ({"thinking": {"type": "disabled"}}, {"reasoning_budget": 0}),
        ({"output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}}},
         {"response_format": FOLLOWED}),
        ({"stream": True}, {"stream": True, "stream_options": {"include_usage": True}}),
        ({"metadata": {"user_id": "x"}, "unheard_of": 1}, {}),
    ],
)  # fmt: skip
def test_what_a_message_is_asked_with(asked, expected):
    made = messages.chat({"max_tokens": 1, "messages": [USER], **asked})
    assert {name: made.get(name) for name in expected} == expected
    usual = {"max_tokens", "messages", "tool_choice"}
    assert set(made) - usual == set(expected) - usual


def test_the_system_prompt():
    system = [text("x-anthropic-billing-header: v=1; h=2;"), text("a"), text("b")]
    asked = messages.count({"system": system, "messages": [{"role": "system", "content": "c"}, USER]})
    assert asked["messages"] == [{"role": "system", "content": "a\nb\nc"}, USER]
    asked = messages.count({"system": "x-anthropic-billing-header: v=1;\na", "messages": [USER]})
    assert asked["messages"][0]["content"] == "a"


OUTPUT = {"type": "function_call_output", "call_id": "t1"}
FUNCTION_CALL = {"type": "function_call", "call_id": "t1", "name": "f", "arguments": '{"a": null}'}


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"input": "u"}, [USER]),
        ({"input": "u", "instructions": "s"}, [{"role": "system", "content": "s"}, USER]),
        ({"instructions": "s", "input": [{"role": "developer", "content": "d"}, USER]},
         [{"role": "system", "content": "s\nd"}, USER]),
        ({"input": [{"type": "message", "role": "user", "content": [
            {"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]}]},
         [{"role": "user", "content": "a\nb"}]),
        ({"input": [
            USER,
            {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "x"}]},
            FUNCTION_CALL,
            {**OUTPUT, "output": "3"},
            {**OUTPUT, "output": [{"type": "input_text", "text": "4"}]}]},
         [USER, {"role": "assistant", "content": "x", "reasoning_content": "hm", "tool_calls": [CALL]},
          tool("3"), tool("4")]),
        ({"input": [{"type": "reasoning", "encrypted_content": "x", "summary": [
            {"type": "summary_text", "text": "hm"}]}]},
         [{"role": "assistant", "content": "", "reasoning_content": "hm"}]),
    ],
)  # fmt: skip
def test_items_become_a_chat(asked, expected):
    assert responses.chat(asked)["messages"] == expected


SCHEMA = {"type": "json_schema", "name": "n", "schema": {"type": "object"}}


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"max_output_tokens": 3, "temperature": 0.5, "top_p": 0.2},
         {"max_tokens": 3, "temperature": 0.5, "top_p": 0.2}),
        ({"tools": [{"type": "function", "name": "f", "strict": True}, {"type": "web_search"}]},
         {"tools": [{"type": "function", "function": {
             "name": "f", "parameters": {"type": "object", "properties": {}}}}]}),
        ({"tool_choice": {"type": "function", "name": "f"}, "parallel_tool_calls": False},
         {"tool_choice": {"type": "function", "function": {"name": "f"}}, "parallel_tool_calls": False}),
        ({"text": {"format": SCHEMA, "verbosity": "low"}}, {"response_format": FOLLOWED}),
        ({"text": {"format": {"type": "json_object"}}}, {"response_format": {"type": "json_object"}}),
        ({"reasoning": {"effort": "low", "summary": "auto"}}, {"reasoning_effort": "low"}),
        ({"reasoning": {"effort": None}, "text": {"format": None}}, {}),
        ({"stream": True, "stream_options": {"include_obfuscation": True}},
         {"stream": True, "stream_options": {"include_usage": True}}),
        ({"store": True, "include": ["x"], "metadata": {}, "truncation": "auto", "user": "x"}, {}),
    ],
)  # fmt: skip
def test_what_a_response_is_asked_with(asked, expected):
    made = responses.chat({"input": "x", **asked})
    assert {name: made.get(name) for name in expected} == expected
    usual = {"messages", "tool_choice"}
    assert set(made) - usual == set(expected) - usual


# Arbitrary values

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2) | st.sampled_from(["", "x", "text", "function", "user"]),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["type", "text", "x"]), inner)
    ),
    max_leaves=4,
)
FULL = {
    messages.chat: {
        "max_tokens": 1,
        "system": [text("s")],
        "messages": [USER, {"role": "assistant", "content": [text("x"), USE]},
                     {"role": "user", "content": [result([text("3")]), text("y")]}],
        "tools": [ANTHROPIC_TOOL],
        "tool_choice": {"type": "tool", "name": "f", "disable_parallel_tool_use": True},
        "thinking": {"type": "enabled", "budget_tokens": 3},
        "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": {}}},
        "stop_sequences": ["x"],
        "stream": True,
    },
    responses.chat: {
        "instructions": "s",
        "input": [USER, {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
                  {"role": "assistant", "content": [{"type": "output_text", "text": "x"}]}, FUNCTION_CALL,
                  {**OUTPUT, "output": "3"}],
        "tools": [*ASKED["tools"], {"type": "namespace", "name": "n", "tools": ASKED["tools"]}],
        "tool_choice": {"type": "function", "name": "f", "namespace": "n"},
        "text": {"format": SCHEMA},
        "reasoning": {"effort": "low"},
        "parallel_tool_calls": True,
        "background": False,
        "max_output_tokens": 3,
    },
}  # fmt: skip
"""Requests that use every field."""
PATHS = {messages.chat: "/v1/messages", responses.chat: "/v1/responses"}


def places(value, at=()):
    """Yield the place of every value inside."""
    yield at
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in inner:
        yield from places(each, (*at, key))


@pytest.mark.parametrize("chat", FULL)
@given(data=st.data())
@settings(deadline=None, max_examples=400, suppress_health_check=[HealthCheck.too_slow])
def test_what_is_wrong_anywhere_is_refused_in_one_line(chat, data):
    request = copy.deepcopy(FULL[chat])
    for _ in range(data.draw(st.integers(0, 2))):
        *way, last = data.draw(st.sampled_from([at for at in places(request) if at]))
        holder = request
        for key in way:
            holder = holder[key]
        if data.draw(st.booleans()):
            holder[last] = data.draw(JSON)
        else:
            holder.pop(last)
    path, refusal = PATHS[chat], None
    try:
        known, body, original = translated(path, json.dumps(request).encode())
        made, _ = checked(known, body, ("demo",), {})
    except Refusal as error:
        refusal = error
    if refusal is not None:
        assert refusal.status == 400
        assert "\n" not in refusal.message
    else:
        assert made["messages"]
        events_of(DOORS[path].translator(original), chunks_of([{"content": "x"}], {"finish_reason": "stop"}))


@pytest.mark.parametrize("chat", FULL)
def test_what_is_left_open_is_not_said(chat):
    needed = {name: FULL[chat][name] for name in ("max_tokens", "messages", "input") if name in FULL[chat]}
    nulls = dict.fromkeys((*FULL[chat], *PASSED))
    asked = [json.dumps(request).encode() for request in ({**nulls, **needed}, needed)]
    assert translated(PATHS[chat], asked[0])[1] == translated(PATHS[chat], asked[1])[1]


@pytest.mark.parametrize("chat", FULL)
def test_what_is_full_is_served(chat):
    assert checked("/v1/chat/completions", json.dumps(chat(FULL[chat])).encode(), ("demo",), {})[0][
        "messages"
    ]

"""Forms of requests that agents and other programs send are read: null, parts, items, documents, schemas."""

from __future__ import annotations

import base64
import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spac.serve import forms
from spac.serve.refusal import Refusal

USER = {"role": "user", "content": "hello"}
FEW = {"max_tokens": 4, "temperature": 0}
SCHEMA = {"type": "object", "properties": {"x": True, "y": {"type": "array", "items": True}, "z": False}}


def text_file(text: str) -> dict[str, str]:
    data = base64.b64encode(text.encode()).decode()
    return {"type": "input_file", "filename": "a.txt", "file_data": f"data:text/plain;base64,{data}"}


NULLS: dict[str, Any] = {
    "messages": [
        USER,
        {
            "role": "assistant", "content": None, "refusal": None, "audio": None, "function_call": None,
            "tool_calls": [{"id": "1", "index": None, "type": "function",
                            "function": {"name": "f", "arguments": "{}", "extra": None}}],
        },
        {"role": "tool", "tool_call_id": "1", "content": "3", "name": None},
    ],
    "tools": [{"type": "function",
               "function": {"name": "f", "description": None, "parameters": None, "strict": None}}],
    "tool_choice": None, "stop": None, "response_format": None, "logit_bias": None, "seed": None,
}  # fmt: skip
CHATS = {
    "nulls": NULLS,
    "boolean schemas": {
        "messages": [USER], "tools": [{"type": "function", "function": {"name": "f", "parameters": SCHEMA}}],
    },
    "no parameters": {"messages": [USER], "tools": [{"type": "function", "function": {"name": "f"}}]},
    "parts": {
        "messages": [
            {"role": "system", "content": [{"type": "text", "text": "a", "cache_control": {"type": "x"}}]},
            {"role": "user", "content": [{"type": "input_text", "text": "b"}]},
            {"role": "assistant", "content": [{"type": "output_text", "text": "c"}]},
            {"role": "user", "content": [{"type": "text", "text": "d", "annotations": None}]},
        ]
    },
    "answer's schema": {
        "messages": [USER],
        "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}},
    },
}  # fmt: skip


@pytest.mark.parametrize("name", CHATS)
def test_chats(thinking_server, name):
    status, body = thinking_server.ask("POST", "/v1/chat/completions", {**FEW, **CHATS[name]})
    assert status == 200, body
    counted = thinking_server.ask("POST", "/v1/chat/completions/input_tokens", CHATS[name])
    assert counted[0] == 200, counted


CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "c", "output": "3"}
ITEMS = {
    "reasoning without content": [{"type": "reasoning", "id": "r", "summary": [], "encrypted_content": None}],
    "a call": [CALL, OUTPUT],
    "a custom call": [
        {"type": "custom_tool_call", "call_id": "c", "name": "apply_patch", "input": "*** Begin"},
        {"type": "custom_tool_call_output", "call_id": "c", "output": "done"},
    ],
    "a shell call": [
        {"type": "local_shell_call", "call_id": "c", "status": "completed",
         "action": {"type": "exec", "command": ["ls"], "env": None}},
        {"type": "local_shell_call_output", "id": "c", "output": {"exit": 0}},
    ],
    "a search": [{"type": "web_search_call", "id": "w", "status": "completed"}],
    "a compaction": [{"type": "compaction", "encrypted_content": "x"}],
    "a reference": [{"type": "item_reference", "id": "m"}],
    "a file": [{"type": "message", "role": "user", "content": [text_file("hi")]}],
}  # fmt: skip


@pytest.mark.parametrize("name", ITEMS)
def test_items_of_responses(thinking_server, name):
    request = {"input": [USER, *ITEMS[name]], "max_output_tokens": 4, "temperature": 0, "instructions": None}
    status, body = thinking_server.ask("POST", "/v1/responses", request)
    assert status == 200, body
    assert thinking_server.ask("POST", "/v1/responses/input_tokens", request)[0] == 200


def test_what_items_say_is_in_the_prompt():
    request = {"input": [USER, *ITEMS["a custom call"], *ITEMS["a shell call"], *ITEMS["a file"]]}
    forms.read(forms.RESPONSES, request)
    text = json.dumps(request["input"])
    assert all(each in text for each in ("apply_patch", "*** Begin", "done", "local_shell", "ls", "hi"))
    assert [each.get("type", "message") for each in request["input"]] == [
        "message", *["function_call", "function_call_output"] * 2, "message",
    ]  # fmt: skip


def test_a_document_is_text(server):
    document = {"type": "document", "title": "T", "source": {"type": "text", "data": "a b c d e f g h"}}
    body = {"model": "m", "max_tokens": 2, "messages": [{"role": "user", "content": [document]}]}
    counts = []
    for content in ([document], [{"type": "text", "text": ""}]):
        request = body | {"messages": [{"role": "user", "content": content}]}
        status, answer = server.ask("POST", "/v1/messages/count_tokens", request)
        assert status == 200, answer
        counts.append(json.loads(answer)["input_tokens"])
    assert counts[0] > counts[1] + 8
    assert server.ask("POST", "/v1/messages", body)[0] == 200


def test_what_nobody_honours_is_refused_by_name(server):
    status, body = server.ask("POST", "/v1/completions", {"prompt": "a", "max_tokens": 2, "suffix": ")"})
    assert (status, "suffix" in body.decode()) == (400, True)
    fine = {"prompt": "a", "max_tokens": 2, "suffix": None}
    assert server.ask("POST", "/v1/completions", fine)[0] == 200


def test_a_file_that_is_no_text_is_refused():
    for file in ({"type": "input_file", "file_id": "f"}, {"type": "input_file", "file_data": "!"}):
        with pytest.raises(Refusal, match="send its text"):
            forms.read(forms.RESPONSES, {"input": [{"role": "user", "content": [file]}]})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(["type", "content", "role", "name", "function", "parameters", "properties", "items",
                         "anyOf", "text", "input", "output", "source", "data", "tool_calls", "schema"]),
        inner, max_size=4),
    max_leaves=20,
)  # fmt: skip


@given(messages=JSON, tools=JSON, items=JSON, form=JSON, path=st.sampled_from(sorted(forms._PATHS)))
def test_any_request_is_read_or_refused(messages, tools, items, form, path):
    request = {"messages": messages, "tools": tools, "input": items, "response_format": form}
    once = copy.deepcopy(request)
    try:
        forms.read(path, once)
    except Refusal:
        return
    again = copy.deepcopy(once)
    forms.read(path, again)
    assert again == once

"""Forms of requests that agents and other programs send are read: null, parts, items, documents, schemas."""

from __future__ import annotations

import base64
import copy
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spac.serve import forms
from spac.serve.checks import formed
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
    "a refusal and a file": {
        "messages": [
            USER,
            {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
            {"role": "user", "content": [{"type": "file", "file": {**text_file("x"), "type": None}}]},
        ]
    },
    "the first form of tools": {
        "messages": [
            USER,
            {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}},
            {"role": "function", "name": "f", "content": "3"},
        ]
    },
    "what only another server can use": {
        "messages": [USER], "modalities": ["text"], "prediction": {"type": "content", "content": "x"},
        "store": True, "metadata": {"a": "b"}, "service_tier": "flex", "verbosity": "low", "user": "u",
        "safety_identifier": "s", "prompt_cache_key": "k", "web_search_options": {}, "functions": [],
    },
    "answer's schema": {
        "messages": [USER],
        "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}},
    },
}  # fmt: skip


@pytest.mark.parametrize("name", CHATS)
def test_chats(thinking_server, name):
    thinking_server.post("/v1/chat/completions", {**FEW, **CHATS[name]})
    thinking_server.post("/v1/chat/completions/input_tokens", CHATS[name])


CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "c", "output": "3"}
ITEMS: dict[str, list[Any]] = {
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
    "another shell": [
        {"type": "shell_call", "call_id": "c", "action": {"commands": ["ls"]}},
        {"type": "shell_call_output", "call_id": "c", "output": [{"stdout": "a", "stderr": ""}]},
    ],
    "a patch": [
        {"type": "apply_patch_call", "call_id": "c", "operation": {"type": "delete_file", "path": "a"}},
        {"type": "apply_patch_call_output", "call_id": "c", "status": "completed"},
    ],
    "an answer without a type": [{"role": "assistant", "content": "b"}, USER],
    "a refusal": [{"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}, USER],
    "a function's file": [
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": [text_file("x")]},
    ],
    "a search of tools": [{"type": "tool_search_call", "arguments": {}}, {"type": "tool_search_output"}],
    "a search": [{"type": "web_search_call", "id": "w", "status": "completed"}],
    "reasoning without a text": [{"type": "reasoning", "summary": [], "content": []}],
    "a compaction": [{"type": "compaction", "encrypted_content": "x"}],
    "a reference": [{"type": "item_reference", "id": "m"}],
    "a file": [{"type": "message", "role": "user", "content": [text_file("hi")]}],
}  # fmt: skip


@pytest.mark.parametrize("name", ITEMS)
def test_items_of_responses(thinking_server, name):
    request = {"input": [USER, *ITEMS[name]], "max_output_tokens": 4, "temperature": 0, "instructions": None}
    for path in ("/v1/responses", "/v1/responses/input_tokens"):
        thinking_server.post(path, request)


def test_what_items_say_is_in_the_prompt():
    calls = ("a custom call", "a shell call", "another shell", "a patch")
    request = {"input": [USER, *(item for name in calls for item in ITEMS[name]), *ITEMS["a file"]]}
    forms.read(forms.RESPONSES, request)
    text = json.dumps(request["input"])
    said = "apply_patch;*** Begin;done;local_shell;ls;hi;stdout;delete_file;completed"
    assert all(each in text for each in said.split(";"))
    assert [each["type"] for each in request["input"]] == [
        "message", *["function_call", "function_call_output"] * 4, "message",
    ]  # fmt: skip


BODY = [{"type": "text", "text": "a b c d e f g h i j k l"}]
DOCUMENTS = [
    {"type": "document", "title": "T", "source": {"type": "text", "data": BODY[0]["text"]}},
    {"type": "document", "source": {"type": "content", "content": BODY}},
    {"type": "search_result", "title": "T", "source": "S", "content": BODY},
    {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "search_result", "content": BODY}]},
]


@pytest.mark.parametrize("document", DOCUMENTS)
def test_a_document_is_text(thinking_server, document):
    call = {"type": "tool_use", "id": "t", "name": "f", "input": {}}
    before = [USER, {"role": "assistant", "content": [call]}] if document["type"] == "tool_result" else []
    empty, full = (
        {"model": "m", "max_tokens": 2, "messages": [*before, {"role": "user", "content": [each]}]}
        for each in ({"type": "text", "text": ""}, document)
    )
    less, more = (
        thinking_server.post("/v1/messages/count_tokens", each)["input_tokens"] for each in (empty, full)
    )
    assert more > less + 8
    thinking_server.post("/v1/messages", full)


def test_tools_of_messages(thinking_server):
    """Tools that another server runs are left out, and so are all if none may be called."""

    def count(**fields):
        request = {"model": "m", "messages": [USER], **fields}
        return thinking_server.post("/v1/messages/count_tokens", request)["input_tokens"]

    search = {"type": "web_search_20250305", "name": "web_search", "max_uses": 5}
    add = {"type": "custom", "name": "add", "input_schema": SCHEMA}
    assert count() == count(tools=[search]) == count(tools=[add], tool_choice={"type": "none"})
    assert count() < count(tools=[add]) == count(tools=[add, search])
    request = {"tools": [add], "tool_choice": {"type": "any", "disable_parallel_tool_use": True}}
    forms.read(forms.MESSAGES, request)
    assert request["parallel_tool_calls"] is False


UNHEARD = [
    ("/v1/completions", "suffix", ")", None), ("/v1/completions", "best_of", 2, 1),
    ("/v1/completions", "best_of", "x", None),
    ("/v1/completions", "response_format", {"type": "json_object"}, {"type": "text"}),
    ("/v1/completions", "logit_bias", "x", {}), ("/v1/completions", "logit_bias", {"5": "x"}, {"5": False}),
    ("/v1/completions", "logit_bias", [[5]], [[5, -1], ["a", False]]),
    ("/completion", "logit_bias", [[5, True]], [[5, 0.5]]),
    ("/v1/embeddings", "dimensions", 4, None),
    ("/detokenize", "tokens", [10**9], [1]), ("/detokenize", "tokens", [-1], [1]),
    ("/v1/chat/completions", "functions", [{"name": "f"}], []),
    ("/v1/chat/completions", "function_call", {"name": "f"}, None),
    ("/v1/chat/completions", "modalities", ["text", "audio"], ["text"]),
    ("/v1/chat/completions", "echo", True, False), ("/v1/chat/completions", "chat_template", "{{ x }}", ""),
    ("/v1/chat/completions", "response_format", "json_object", {"type": "text"}),
    ("/v1/chat/completions", "stream_options", "x", {}),
    ("/v1/chat/completions", "reasoning_effort", 3, "low"),
    ("/v1/chat/completions", "chat_template_kwargs", "x", {"enable_thinking": False}),
    ("/v1/chat/completions", "parallel_tool_calls", "yes", False),
    ("/v1/chat/completions", "tool_choice", "required", "auto"),
    ("/v1/chat/completions", "tool_choice", {"type": "any"}, None),
    ("/v1/chat/completions", "tools", [{"type": "web_search"}], []),
    ("/v1/chat/completions", "tools", [{"type": "function", "function": "f"}], None),
    ("/v1/chat/completions", "tools", [{"type": "function", "function": {}}], None),
    ("/v1/messages", "tool_choice", {"type": "any"}, {"type": "auto"}),
    ("/v1/messages", "system", 3, [{"type": "text", "text": "x"}]), ("/v1/messages", "thinking", "x", None),
    ("/v1/responses", "tool_choice", "required", "none"),
    ("/v1/responses", "reasoning", "low", {"effort": None}),
    ("/v1/responses", "background", True, False), ("/v1/responses", "conversation", "c", None),
    ("/v1/responses", "previous_response_id", "r", None), ("/v1/responses", "prompt", {"id": "p"}, None),
    ("/v1/responses", "instructions", ["x"], "x"), ("/v1/responses", "top_logprobs", 2, 0),
]  # fmt: skip


@pytest.mark.parametrize(("path", "name", "value", "fine"), UNHEARD)
def test_what_nobody_honours_is_refused_by_name(server, path, name, value, fine):
    least = {"prompt": "a", "messages": [USER], "input": "x", **FEW, "max_output_tokens": 2}
    given = "prompt" if "completion" in path else "input"
    given = "messages" if path in ("/v1/chat/completions", "/v1/messages") else given
    request = {each: least[each] for each in (given, "temperature", "max_tokens", "max_output_tokens")}
    assert name in server.refusal(path, {**request, name: value})
    server.post(path, {**request, name: fine})


def test_a_call_of_a_tool_that_is_left_out_is_not_required():
    request = {"input": "x", "tools": [{"type": "web_search"}, {"type": "local_shell"}]}
    assert json.loads(formed(forms.RESPONSES, json.dumps(request).encode()))["tools"] == []
    with pytest.raises(Refusal, match="there is no tool that can be called"):
        formed(forms.RESPONSES, json.dumps({**request, "tool_choice": "required"}).encode())


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


@settings(max_examples=50)
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

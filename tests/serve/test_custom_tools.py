"""Custom tools are told to the model, and their calls are handed out in their own form."""

from __future__ import annotations

import copy
import json

import pytest

from spac.serve import forms
from spac.serve.checks import formed
from spac.serve.custom_tools import ChatCalls
from spac.serve.responses import ResponseForm

PATCH = '*** Begin Patch\n*** Add File: a\n+"hi"\n*** End Patch'
CUSTOM = {
    "type": "custom", "name": "apply_patch", "description": "Patches files.",
    "format": {"type": "grammar", "syntax": "lark", "definition": "start: begin_patch hunk end_patch"},
}  # fmt: skip
ADD = {"type": "function", "name": "add", "parameters": {"type": "object", "properties": {}}}
ASKED = {
    "input": "hello", "tools": [CUSTOM, ADD], "tool_choice": {"type": "custom", "name": "apply_patch"},
    "temperature": 0, "max_output_tokens": 60, "chat_template_kwargs": {"enable_thinking": False},
}  # fmt: skip


def item(name: str, arguments: str) -> dict:
    return {
        "id": f"fc_{name}", "type": "function_call", "status": "completed", "call_id": f"call_{name}",
        "name": name, "arguments": arguments,
    }  # fmt: skip


def test_an_answer(thinking_server):
    (call,) = thinking_server.post("/v1/responses", ASKED)["output"]
    assert (call["type"], call["name"]) == ("custom_tool_call", "apply_patch")
    assert isinstance(call["input"], str)
    assert "arguments" not in call


def test_a_stream_and_its_client(thinking_server):
    extra = {"chat_template_kwargs": ASKED["chat_template_kwargs"]}
    asked = {name: value for name, value in ASKED.items() if name not in extra}
    events = list(
        thinking_server.client().responses.create(model="demo", stream=True, extra_body=extra, **asked)
    )
    assert "response.function_call_arguments.delta" not in {each.type for each in events}
    items = [each.item for each in events if each.type.startswith("response.output_item")]
    assert [each.type for each in items] == ["custom_tool_call"] * 2
    assert events[-1].response.output[0].input == items[1].input


def test_the_model_is_told_of_it(thinking_server):
    with_tool, without = (
        thinking_server.post("/v1/responses/input_tokens", input="x", tools=tools)["input_tokens"]
        for tools in ([CUSTOM], [])
    )
    assert with_tool > without + 30
    request = {"input": "x", "tools": [copy.deepcopy(CUSTOM)]}
    forms.read("/v1/responses", request)
    (tool,) = request["tools"]
    assert (tool["type"], tool["name"]) == ("function", "apply_patch")
    assert "begin_patch hunk" in tool["description"]


def test_events_of_several_kinds():
    form = ResponseForm({"tools": [CUSTOM, ADD]})
    text = json.dumps(PATCH)
    sent = [
        {"type": "response.output_item.added", "item": item("apply_patch", "")},
        {"type": "response.function_call_arguments.delta", "item_id": "fc_apply_patch", "delta": '{"input'},
        {"type": "response.output_item.added", "item": item("add", "")},
        {"type": "response.function_call_arguments.delta", "item_id": "fc_add", "delta": "{}"},
        {"type": "response.output_item.done", "item": item("apply_patch", json.dumps({"input": PATCH}))},
        {"type": "response.completed", "response": {"output": [item("apply_patch", f'{{"input": {text}}}')]}},
    ]  # fmt: skip
    data = b"".join(f"event: {each['type']}\ndata: {json.dumps(each)}\n\n".encode() for each in sent)
    blocks = form.part(data).decode().split("\n\n")
    assert blocks.pop() == ""
    told = [json.loads(block.partition("data: ")[2]) for block in blocks]
    end = told.pop(3)
    assert [each["type"] for each in told] == [each["type"] for i, each in enumerate(sent) if i != 1]
    for ours, theirs in zip(told[1:3], sent[2:4], strict=True):
        assert ours == {**theirs, "output_index": 1, "sequence_number": ours["sequence_number"]}
    assert told[3]["item"]["input"] == told[4]["response"]["output"][0]["input"] == end["input"] == PATCH


CHAT_CUSTOM = {
    "type": "custom",
    "custom": {
        "name": "apply_patch", "description": "Patches files.",
        "format": {"type": "grammar", "grammar": {"syntax": "lark", "definition": "start: begin_patch hunk"}},
    },
}  # fmt: skip
NAMED = {"type": "custom", "custom": {"name": "apply_patch"}}
CHAT_ADD = {"type": "function", "function": {"name": "add", "parameters": ADD["parameters"]}}
CHAT = {
    "messages": [{"role": "user", "content": "hello"}], "tools": [CHAT_CUSTOM, CHAT_ADD],
    "tool_choice": NAMED, "temperature": 0, "max_tokens": 60,
    "chat_template_kwargs": ASKED["chat_template_kwargs"],
}  # fmt: skip
ALLOWED = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [NAMED]}}


@pytest.mark.parametrize("choice", [NAMED, ALLOWED], ids=["named", "allowed"])
def test_a_chat(thinking_server, choice):
    asked = {**CHAT, "tool_choice": choice, "parallel_tool_calls": False}
    message = thinking_server.post("/v1/chat/completions", asked)["choices"][0]["message"]
    (call,) = message["tool_calls"]
    assert (call["type"], call["custom"]["name"]) == ("custom", "apply_patch")
    assert isinstance(call["custom"]["input"], str)
    assert "function" not in call


def test_a_chats_stream(thinking_server):
    sent = thinking_server.events("/v1/chat/completions", CHAT)
    choices = [each for one in sent for each in one["choices"]]
    calls = [call for each in choices for call in each["delta"].get("tool_calls") or ()]
    assert [(call["index"], call["custom"].get("name")) for call in calls] == [(0, "apply_patch"), (0, None)]
    assert choices[-1]["finish_reason"]
    assert not choices[-1]["delta"].get("tool_calls")


def test_a_chats_calls_of_several_kinds():
    """A custom call's text comes whole, and a function's call comes in its pieces."""
    form = ChatCalls(CHAT)
    text = json.dumps({"input": PATCH})
    first = {"name": "apply_patch", "arguments": text[:9]}
    deltas = [
        [{"index": 0, "id": "a", "type": "function", "function": first}],
        [{"index": 0, "function": {"arguments": text[9:]}}],
        [{"index": 1, "id": "b", "type": "function", "function": {"name": "add", "arguments": ""}}],
        [{"index": 1, "function": {"arguments": "{}"}}],
    ]  # fmt: skip
    choices = [{"index": 0, "delta": {"tool_calls": each}, "finish_reason": None} for each in deltas]
    choices.append({"index": 0, "delta": {}, "finish_reason": "tool_calls"})
    data = b"".join(f"data: {json.dumps({'choices': [each]})}\n\n".encode() for each in choices)
    blocks = form.part(data + b":\n\ndata: [DONE]\n\n").decode().split("\n\n")
    assert blocks[-3:] == [":", "data: [DONE]", ""]
    told = [json.loads(block.removeprefix("data: "))["choices"][0] for block in blocks[:-3]]
    assert [each["delta"].get("tool_calls") for each in told] == [
        [{"index": 0, "id": "a", "type": "custom", "custom": {"name": "apply_patch", "input": ""}}],
        [], deltas[2], deltas[3], [{"index": 0, "custom": {"input": PATCH}}], None,
    ]  # fmt: skip
    assert [each["finish_reason"] for each in told] == [None] * 5 + ["tool_calls"]


def test_a_chats_earlier_calls_are_in_the_prompt(thinking_server):
    call = {"id": "c", "type": "custom", "custom": {"name": "apply_patch", "input": PATCH}}
    messages = [*CHAT["messages"], {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "c", "content": "done"}]  # fmt: skip
    asked = {**CHAT, "messages": messages, "tool_choice": "auto", "max_tokens": 2}
    request = json.loads(formed("/v1/chat/completions", json.dumps(asked).encode()))
    (made,) = request["messages"][1]["tool_calls"]
    assert json.loads(made["function"]["arguments"]) == {"input": PATCH}
    assert "begin_patch hunk" in request["tools"][0]["function"]["description"]
    assert "Add File" in thinking_server.post("/apply-template", asked)["prompt"]
    thinking_server.post("/v1/chat/completions", asked)

"""An answer that has to call a tool calls it at once, in the form of the tool's schema, at every door."""

from __future__ import annotations

import json

import pytest

USER = [{"role": "user", "content": "hello"}]
INTEGER = {"type": "integer"}
NUMBERS = {"type": "object", "properties": {"a": INTEGER, "b": INTEGER}, "required": ["a", "b"]}
CHATS = "/v1/chat/completions"
OFF = {"chat_template_kwargs": {"enable_thinking": False}, "temperature": 0, "max_tokens": 400}


def tool(name: str) -> dict:
    return {"type": "function", "function": {"name": name, "parameters": NUMBERS}}


def named(name: str) -> dict:
    return {"type": "function", "function": {"name": name}}


def chat(server, **request):
    return server.post(CHATS, {"messages": USER, **OFF}, **request)["choices"][0]


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ("required", {"add", "sub"}), (named("sub"), {"sub"}), (named("add"), {"add"}),
        ({"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [named("sub")]}}, {"sub"}),
    ],
)  # fmt: skip
def test_a_chat(thinking_server, choice, names):
    tools = [tool("add"), tool("sub")]
    more = {} if choice == named("add") else {"parallel_tool_calls": False}  # one call is usual for a name
    one = chat(thinking_server, tools=tools, tool_choice=choice, **more)
    (call,) = one["message"]["tool_calls"]
    assert one["finish_reason"] == "tool_calls"
    assert not (one["message"]["content"] or "").strip()
    assert call["function"]["name"] in names
    assert {type(value) for value in json.loads(call["function"]["arguments"]).values()} == {int}


def test_a_choice_that_leaves_it_open(thinking_server):
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [named("sub")]}}
    one = chat(thinking_server, tools=[tool("add"), tool("sub")], tool_choice=choice)
    assert one["message"].get("tool_calls") is None


@pytest.mark.parametrize("choice", [named("mul"), {"type": "web_search"}, {"type": "function"}])
def test_a_tool_that_is_not_there(thinking_server, choice):
    asked = {"messages": USER, "tools": [tool("add")], "tool_choice": choice}
    assert "which is none of the tools" in thinking_server.refusal(CHATS, asked)


def test_responses(thinking_server):
    request = {
        "input": "hello", "tools": [{"type": "function", "name": "add", "parameters": NUMBERS}],
        "tool_choice": {"type": "function", "name": "add"}, "max_output_tokens": 400, **OFF,
    }  # fmt: skip
    output = thinking_server.post("/v1/responses", request)["output"]
    assert [item["type"] for item in output] == ["function_call"]


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "add"}])
def test_messages(thinking_server, choice):
    choice = {**choice, "disable_parallel_tool_use": True}
    tools = [{"name": "add", "input_schema": NUMBERS}]
    request = {"model": "m", "messages": USER, "tools": tools, "tool_choice": choice, **OFF}
    content = thinking_server.post("/v1/messages", request)["content"]
    assert {block["type"] for block in content} == {"tool_use"}


def test_a_template_that_knows_no_tools(server):
    """A system message tells the model of them, and the call comes in a form that is read."""
    tools = [tool("add")]
    one = chat(server, tools=tools, parallel_tool_calls=False, tool_choice="required")
    (call,) = one["message"]["tool_calls"]
    assert call["function"]["name"] == "add"
    assert set(json.loads(call["function"]["arguments"])) == {"a", "b"}
    messages = [*USER, {"role": "assistant", "tool_calls": [call]},
                {"role": "tool", "tool_call_id": call["id"], "content": "three"}, *USER]  # fmt: skip
    prompt = server.post("/apply-template", messages=messages, tools=tools)["prompt"]
    assert all(each in prompt for each in ('"name":"add"', "<tool_call>", "three", '"integer"'))
    asked = {"messages": USER, "tools": tools, "tool_choice": "none"}
    assert "add" not in server.post("/apply-template", asked)["prompt"]

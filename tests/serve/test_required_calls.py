"""An answer that has to call a tool calls it at once, in the form of the tool's schema, at every door."""

from __future__ import annotations

import json

import pytest

USER = [{"role": "user", "content": "hello"}]
NUMBERS = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
    "required": ["a", "b"],
}
OFF = {"chat_template_kwargs": {"enable_thinking": False}, "temperature": 0, "max_tokens": 400}


def tool(name: str) -> dict:
    return {"type": "function", "function": {"name": name, "parameters": NUMBERS}}


def named(name: str) -> dict:
    return {"type": "function", "function": {"name": name}}


def chat(server, **request):
    status, body = server.ask("POST", "/v1/chat/completions", {"messages": USER, **OFF, **request})
    return status, json.loads(body)


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ("required", {"add", "sub"}),
        (named("sub"), {"sub"}),
        (named("add"), {"add"}),
        ({"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [named("sub")]}}, {"sub"}),
    ],
)
def test_a_chat(thinking_server, choice, names):
    status, answer = chat(
        thinking_server, tools=[tool("add"), tool("sub")], tool_choice=choice, parallel_tool_calls=False
    )
    assert status == 200, answer
    (one,) = answer["choices"]
    (call,) = one["message"]["tool_calls"]
    assert one["finish_reason"] == "tool_calls"
    assert not (one["message"]["content"] or "").strip()
    assert call["function"]["name"] in names
    assert {type(value) for value in json.loads(call["function"]["arguments"]).values()} == {int}


def test_a_named_tool_is_called_once(thinking_server):
    status, answer = chat(thinking_server, tools=[tool("add")], tool_choice=named("add"))
    assert status == 200
    assert len(answer["choices"][0]["message"]["tool_calls"]) == 1


def test_a_choice_that_leaves_it_open(thinking_server):
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [named("sub")]}}
    status, answer = chat(thinking_server, tools=[tool("add"), tool("sub")], tool_choice=choice)
    assert status == 200, answer
    assert answer["choices"][0]["message"].get("tool_calls") is None


@pytest.mark.parametrize("choice", [named("mul"), {"type": "web_search"}, {"type": "function"}])
def test_a_tool_that_is_not_there(thinking_server, choice):
    status, answer = chat(thinking_server, tools=[tool("add")], tool_choice=choice)
    assert status == 400
    assert "which is none of the tools" in answer["error"]["message"]


def test_responses(thinking_server):
    request = {
        "input": "hello", "tools": [{"type": "function", "name": "add", "parameters": NUMBERS}],
        "tool_choice": {"type": "function", "name": "add"}, "max_output_tokens": 400, **OFF,
    }  # fmt: skip
    status, body = thinking_server.ask("POST", "/v1/responses", request)
    assert status == 200, body
    assert [item["type"] for item in json.loads(body)["output"]] == ["function_call"]


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "add"}])
def test_messages(thinking_server, choice):
    request = {
        "model": "m", "messages": USER, "tools": [{"name": "add", "input_schema": NUMBERS}],
        "tool_choice": choice, **OFF,
    }  # fmt: skip
    status, body = thinking_server.ask("POST", "/v1/messages", request)
    assert status == 200, body
    assert {block["type"] for block in json.loads(body)["content"]} == {"tool_use"}


def test_a_template_that_knows_no_tools(server):
    """A system message tells the model of them, and the call comes in a form that is read."""
    asked = {"messages": USER, "tools": [tool("add")], "parallel_tool_calls": False, **OFF}
    status, answer = chat(server, **asked, tool_choice="required")
    assert status == 200, answer
    (call,) = answer["choices"][0]["message"]["tool_calls"]
    assert call["function"]["name"] == "add"
    assert set(json.loads(call["function"]["arguments"])) == {"a", "b"}
    messages = [*USER, {"role": "assistant", "tool_calls": [call]},
                {"role": "tool", "tool_call_id": call["id"], "content": "three"}, *USER]  # fmt: skip
    _, body = server.ask("POST", "/apply-template", {"messages": messages, "tools": [tool("add")]})
    prompt = json.loads(body)["prompt"]
    assert all(each in prompt for each in ('"name":"add"', "<tool_call>", "three", '"integer"'))
    _, body = server.ask(
        "POST", "/apply-template", {"messages": USER, "tools": [tool("add")], "tool_choice": "none"}
    )
    assert "add" not in json.loads(body)["prompt"]

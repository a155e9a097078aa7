"""Custom tools of chats and Responses, which take a text in place of an object (a patch tool, for example).

llama.cpp knows functions alone. The model is told of a function with one argument, `input`, and its calls are
handed out as calls of a custom tool.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

INPUT = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
    "additionalProperties": False,
}


def as_function(tool: dict[str, Any]) -> None:
    """Make a custom tool a function. The grammar of its text becomes part of its description."""
    custom = tool.pop("custom", None)  # chats have an object more than Responses
    told = custom if isinstance(custom, dict) else tool
    form = told.pop("format", None)
    text = told.get("description") or ""
    grammar = form.get("grammar", form) if isinstance(form, dict) else None
    if isinstance(grammar, dict) and isinstance(grammar.get("definition"), str):
        text += f"\n\n`input` follows this grammar ({grammar.get('syntax', '')}):\n{grammar['definition']}"
    told.update(description=text, parameters=INPUT)
    tool["type"] = "function"
    if told is custom:
        tool["function"] = custom


def as_call(call: dict[str, Any]) -> None:
    """Make a custom tool's call in a message of a chat the call of a function."""
    if call.get("type") == "custom" and isinstance(custom := call.pop("custom", None), dict):
        arguments = json.dumps({"input": custom.get("input", "")})
        call.update(type="function", function={"name": custom.get("name", ""), "arguments": arguments})


def input_of(arguments: str) -> str:
    """Return the text that a custom tool is called with, or what there is of it in an answer that was cut."""
    try:
        return str(json.loads(arguments)["input"])
    except (ValueError, KeyError, TypeError):  # an answer that was cut, or has not begun
        return arguments


def names_of(request: Mapping[str, Any]) -> set[str]:
    """Return the names of a request's custom tools."""
    tools = request.get("tools")
    custom = [each for each in (tools if isinstance(tools, list) else ()) if isinstance(each, dict)]
    told = [each.get("custom", each) for each in custom if each.get("type") == "custom"]
    return {str(each.get("name")) for each in told if isinstance(each, dict)}


class ItemCalls:
    """Turns calls of functions among the items of Responses into calls of the custom tools they stand for."""

    def __init__(self, request: Mapping[str, Any]) -> None:
        """Read the names of a request's custom tools."""
        self._names = names_of(request)
        self._ids: set[str] = set()  # of their calls

    def has(self, item_id: str | None) -> bool:
        """Return True if an item that was changed has this id."""
        return item_id in self._ids

    def change(self, items: Any) -> None:
        """Change the calls among an answer's items."""
        for item in items if isinstance(items, list) else ():
            if isinstance(item, dict) and item.get("type") == "function_call" and item["name"] in self._names:
                self._ids.add(item["id"])
                item.update(type="custom_tool_call", input=input_of(item.pop("arguments")))


class ChatCalls:
    """Turns calls of functions in a chat's answer into calls of the custom tools that they stand for."""

    def __init__(self, request: Mapping[str, Any]) -> None:
        """Read the names of a request's custom tools."""
        self._names = names_of(request)
        self._arguments: dict[int, dict[int, str]] = {}  # of a stream's calls so far, by choice and call

    def whole(self, body: bytes) -> bytes:
        """Return the body of an answer."""
        answer = json.loads(body)
        for choice in answer.get("choices") or ():
            for call in choice["message"].get("tool_calls") or ():
                if call["function"]["name"] in self._names:
                    function = call.pop("function")
                    text = input_of(function["arguments"])
                    call.update(type="custom", custom={"name": function["name"], "input": text})
        return json.dumps(answer).encode()

    def part(self, events: bytes) -> bytes:
        """Return some whole events of a stream. The text of a call comes at the end of its answer."""
        return b"".join(
            part + b"\n\n" for event in events.split(b"\n\n") if event for part in self._event(event)
        )

    def _event(self, event: bytes) -> Iterator[bytes]:
        head, mark, data = event.partition(b"data: {")
        told = json.loads(b"{" + data) if mark else {}
        for choice in told.get("choices") or ():
            delta, calls = choice["delta"], self._arguments.setdefault(choice["index"], {})
            if "tool_calls" in delta:
                delta["tool_calls"] = [each for each in delta["tool_calls"] if self._begins(each, calls)]
            if choice.get("finish_reason") and calls:
                ends = [{"index": at, "custom": {"input": input_of(text)}} for at, text in calls.items()]
                calls.clear()
                end = {**choice, "delta": {"tool_calls": ends}, "finish_reason": None}
                yield head + b"data: " + json.dumps({**told, "choices": [end]}).encode()
        yield head + b"data: " + json.dumps(told).encode() if mark else event

    def _begins(self, call: dict[str, Any], calls: dict[int, str]) -> bool:
        """Note a piece of a custom call. Return False if the piece is only a part of its JSON."""
        function = call.get("function") or {}
        begins = function.get("name") in self._names
        if not begins and call["index"] not in calls:
            return True
        calls[call["index"]] = calls.get(call["index"], "") + function.get("arguments", "")
        if begins:
            del call["function"]
            call.update(type="custom", custom={"name": function["name"], "input": ""})
        return begins

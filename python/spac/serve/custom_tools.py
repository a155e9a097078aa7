"""Custom tools of Responses, which take a text in place of an object (a patch tool, for example).

llama.cpp knows functions alone. The model is told of a function with one argument, `input`, and its calls are
handed out as calls of a custom tool.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

INPUT = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
    "additionalProperties": False,
}


def as_function(tool: dict[str, Any]) -> None:
    """Make a custom tool of Responses a function. The grammar of its text becomes part of its description."""
    form = tool.pop("format", None)
    text = tool.get("description") or ""
    if isinstance(form, dict) and isinstance(form.get("definition"), str):
        text += f"\n\n`input` follows this grammar ({form.get('syntax', '')}):\n{form['definition']}"
    tool.update(type="function", description=text, parameters=INPUT)


class CustomCalls:
    """Turns calls of functions in an answer into calls of the custom tools that they stand for."""

    def __init__(self, request: Mapping[str, Any]) -> None:
        """Read the names of a request's custom tools."""
        tools = request.get("tools")
        self._names = {
            str(tool.get("name"))
            for tool in (tools if isinstance(tools, list) else ())
            if isinstance(tool, dict) and tool.get("type") == "custom"
        }
        self._ids: set[str] = set()  # of their calls

    def has(self, item_id: str | None) -> bool:
        """Return True if an item that was changed has this id."""
        return item_id in self._ids

    def change(self, items: Any) -> None:
        """Change the calls among an answer's items."""
        for item in items if isinstance(items, list) else ():
            if isinstance(item, dict) and item.get("type") == "function_call" and item["name"] in self._names:
                self._ids.add(item["id"])
                item.update(type="custom_tool_call", input=_input_of(item.pop("arguments")))


def _input_of(arguments: str) -> str:
    try:
        return str(json.loads(arguments)["input"])
    except (ValueError, KeyError, TypeError):  # an answer that was cut, or has not begun
        return arguments

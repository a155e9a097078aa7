"""Shapes of requests: fields, items, tools and schemas, with words of ours in place of all free texts."""

from __future__ import annotations

import json
from typing import Any

LONGEST = 30
"""Longer texts are free texts, whatever their field is."""
TEXT = "some words"
GRAMMAR = "start: /(.|\\n)+/"
FREE = ("text", "content", "description", "instructions", "output", "summary", "title", "input", "thinking")
NAMES = (
    "type", "name", "role", "$schema", "$ref", "required", "enum", "const", "pattern", "syntax", "include",
)  # fmt: skip
IDS = ("id", "call_id", "tool_call_id", "tool_use_id", "item_id")


class Shaper:
    """Makes shapes. An id becomes the same short one in all requests."""

    def __init__(self) -> None:
        self._ids: dict[str, str] = {}

    def shape(self, value: Any, field: str = "", is_named: bool = False) -> Any:
        """Return the shape of a value. Keys are names that a schema chose if it `is_named`."""
        if isinstance(value, dict):
            inner = field in ("properties", "$defs", "definitions") and not is_named
            return {key: self.shape(each, key, inner) for key, each in value.items()}
        if isinstance(value, list):
            return [self.shape(each, field) for each in value]
        if not isinstance(value, str):
            return value
        return self._text(value, field)

    def _text(self, text: str, field: str) -> str:
        if field in NAMES or not text:
            return text
        if field in IDS:
            return self._ids.setdefault(text, f"id_{len(self._ids)}")
        if field == "definition":
            return GRAMMAR
        if field == "arguments":
            try:
                return json.dumps(self.shape(json.loads(text)))
            except ValueError:
                return TEXT
        return TEXT if field in FREE or len(text) > LONGEST or text.startswith("/") else text


def laid_out(value: Any, depth: int = 3, indent: str = "\n") -> str:
    """Return JSON with a line for each value down to `depth`, and one line for each value below."""
    if depth == 0 or not isinstance(value, dict | list) or not value:
        return json.dumps(value)
    inner = indent + " "
    if isinstance(value, dict):
        lines = [f"{json.dumps(key)}: {laid_out(each, depth - 1, inner)}" for key, each in value.items()]
        return "{" + inner + f",{inner}".join(lines) + indent + "}"
    return "[" + inner + f",{inner}".join(laid_out(each, depth - 1, inner) for each in value) + indent + "]"

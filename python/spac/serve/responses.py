"""Answers of Responses in the form that OpenAI's clients read.

llama.cpp's events do not say which item and part of the answer they are of, and clients find it by that.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from spac.serve.custom_tools import ItemCalls

_OF_PARTS = ("response.content_part.", "response.output_text.", "response.reasoning_text.")
"""Events of an item's content, which has one part."""
_ENDS = {
    "function_call": ("response.function_call_arguments.done", "arguments"),
    "custom_tool_call": ("response.custom_tool_call_input.done", "input"),
}
"""The event that tells what a call has in this field, by its kind. llama.cpp sends none."""


class ResponseForm:
    """Changes one answer, whole or in events. Calls of custom tools get their own form."""

    def __init__(self, request: Mapping[str, Any]) -> None:
        """Read the request's tools."""
        self._custom = ItemCalls(request)
        self._places: dict[str, int] = {}  # of items in the output, by id
        self._n_events = 0

    def whole(self, body: bytes) -> bytes:
        """Return the body of an answer."""
        answer = json.loads(body)
        self._custom.change(answer.get("output"))
        return json.dumps(answer).encode()

    def part(self, events: bytes) -> bytes:
        """Return some whole events of a stream."""
        return b"".join(part for event in events.split(b"\n\n") if event for part in self._event(event))

    def _event(self, event: bytes) -> Iterator[bytes]:
        _, mark, data = event.partition(b"data: {")
        told = json.loads(b"{" + data) if mark else {}
        kind, item = told.get("type"), told.get("item")
        if kind is None:  # a ping, or an error
            yield event + b"\n\n"
            return
        if self._custom.has(told.get("item_id")):  # arguments in pieces: their text is JSON
            return
        if isinstance(response := told.get("response"), dict):
            response.setdefault("output", [])
            self._custom.change(response["output"])
        if isinstance(item, dict):
            self._custom.change([item])
            place = self._places.setdefault(item["id"], len(self._places))
            told["output_index"] = place
            if kind == "response.output_item.done" and item["type"] in _ENDS:
                name, field = _ENDS[item["type"]]
                end = {"type": name, "item_id": item["id"], "output_index": place, field: item[field]}
                yield self._numbered({**end, "name": item["name"]})
        elif "item_id" in told:
            told["output_index"] = self._places.setdefault(told["item_id"], len(self._places))
        if kind.startswith(_OF_PARTS):
            told["content_index"] = 0
        if kind.startswith("response.output_text."):
            told.setdefault("logprobs", [])
        yield self._numbered(told)

    def _numbered(self, told: dict[str, Any]) -> bytes:
        told["sequence_number"] = self._n_events
        self._n_events += 1
        return f"event: {told['type']}\ndata: {json.dumps(told)}\n\n".encode()

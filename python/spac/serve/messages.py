"""Anthropic's Messages: translates requests to chat requests, and answers to messages or their events."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from spac.serve import fields
from spac.serve.fields import Turns, refuse
from spac.serve.pieces import End, Event, Piece, Translator, end_of, figures_of, own_id, pieces_of
from spac.serve.refusal import Refusal

TEXT = {"text": "text"}
BILLING = re.compile(r"\Ax-anthropic-billing-header:[^\n]*\n?")
"""A line for billing that some clients put in front of a system prompt.

It differs in each request. With it, no prompt would begin like the one before, and all of it would be
evaluated again.
"""

REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
CHOICES = {"auto": "auto", "any": "required", "none": "none"}
ERRORS = {
    401: "authentication_error", 403: "permission_error", 404: "not_found_error", 413: "request_too_large",
    429: "rate_limit_error", 503: "overloaded_error",
}  # fmt: skip


# Requests


def chat(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the chat request for a request for a message; raise Refusal if it is invalid."""
    asked = count(request)
    asked["max_tokens"] = fields.count(request.get("max_tokens"), "max_tokens")
    if asked.get("stream"):
        asked["stream_options"] = {"include_usage": True}
    return asked


def count(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the chat request for a request to count a prompt's tokens, which needs no `max_tokens`."""
    asked = {**fields.passed(request), **_tools(request), **_reasoning(request)}
    stops = request.get("stop_sequences", [])
    if not isinstance(stops, list):
        raise refuse("stop_sequences", "a list of strings is needed")
    if stops:
        asked["stop"] = [fields.name(stop, f"stop_sequences.{at}") for at, stop in enumerate(stops)]
    asked["messages"] = _messages(request)
    return asked


def _messages(request: Mapping[str, Any]) -> list[dict[str, Any]]:
    turns = Turns()
    for where, block in fields.blocks(request.get("system", ""), "system"):
        turns.system(BILLING.sub("", fields.part(block, where, TEXT)))
    messages = fields.mappings(request.get("messages"), "messages")
    if not messages:
        raise refuse("messages", "at least one is needed")
    for where, message in messages:
        role, blocks = message.get("role"), fields.blocks(message.get("content"), f"{where}.content")
        if role == "user":
            _user(turns, blocks)
        elif role == "assistant":
            _assistant(turns, blocks)
        elif role == "system":
            turns.system("\n".join(fields.part(block, place, TEXT) for place, block in blocks))
        else:
            raise refuse(f"{where}.role", f"user or assistant is needed, not {role!r}")
    return turns.all()


def _user(turns: Turns, blocks: list[tuple[str, dict[str, Any]]]) -> None:
    """Add the user's blocks; they become one message, unless a tool's result stands between them."""
    parts: list[dict[str, Any]] = []
    for where, block in blocks:
        if block.get("type") != "tool_result":
            parts.append(fields.seen(block, where, TEXT, _image))
            continue
        if parts:
            turns.user(fields.contents(parts, "\n"))
            parts = []
        given = fields.content(block.get("content", ""), f"{where}.content", TEXT, _image)
        call = fields.name(block.get("tool_use_id"), f"{where}.tool_use_id")
        if block.get("is_error"):
            given = (
                f"Error: {given}" if isinstance(given, str) else [{"type": "text", "text": "Error:"}, *given]
            )
        turns.tool(call, given)
    if parts or not blocks:
        turns.user(fields.contents(parts, "\n"))


def _image(block: Mapping[str, Any], where: str) -> str | None:
    """Return the address of an image; None for another block."""
    if block.get("type") != "image":
        return None
    source = fields.mapping(block.get("source"), f"{where}.source")
    kind = source.get("type")
    if kind == "url":
        return fields.name(source.get("url"), f"{where}.source.url")
    if kind != "base64":
        raise refuse(f"{where}.source.type", f"base64 or url is needed, not {kind!r}")
    data = fields.name(source.get("data"), f"{where}.source.data")
    return f"data:{fields.name(source.get('media_type'), f'{where}.source.media_type')};base64,{data}"


def _assistant(turns: Turns, blocks: list[tuple[str, dict[str, Any]]]) -> None:
    turns.assistant()
    for where, block in blocks:
        kind = block.get("type")
        if kind == "thinking":
            turns.assistant(reasoning=fields.text(block.get("thinking"), f"{where}.thinking"))
        elif kind == "tool_use":
            arguments = json.dumps(fields.data(block.get("input"), f"{where}.input"), ensure_ascii=False)
            id_, name = (fields.name(block.get(key), f"{where}.{key}") for key in ("id", "name"))
            turns.call(id_, name, arguments)
        elif kind != "redacted_thinking":  # it cannot be read here
            turns.assistant(fields.part(block, where, TEXT))


def _tools(request: Mapping[str, Any]) -> dict[str, Any]:
    asked: dict[str, Any] = {}
    tools = fields.mappings(request.get("tools", []), "tools")
    if tools:
        asked["tools"] = [_tool(tool, where) for where, tool in tools]
    choice = fields.mapping(request.get("tool_choice", {}), "tool_choice")
    kind = choice.get("type", "auto")
    if kind == "tool":
        asked["tool_choice"] = {
            "type": "function",
            "function": {"name": fields.name(choice.get("name"), "tool_choice.name")},
        }
    elif isinstance(kind, str) and kind in CHOICES:
        asked["tool_choice"] = CHOICES[kind]
    else:
        raise refuse("tool_choice.type", f"auto, any, tool or none is needed, not {kind!r}")
    if fields.flag(choice.get("disable_parallel_tool_use", False), "tool_choice.disable_parallel_tool_use"):
        asked["parallel_tool_calls"] = False
    return asked


def _tool(tool: Mapping[str, Any], where: str) -> dict[str, Any]:
    if tool.get("type", "custom") != "custom":
        raise refuse(where, f"a tool of type {tool['type']!r} cannot be had here, only those of the client")
    name = fields.name(tool.get("name"), f"{where}.name")
    schema = fields.data(tool.get("input_schema"), f"{where}.input_schema")
    return fields.function(name, tool.get("description"), schema, where)


def _reasoning(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the chat fields for `thinking` and `output_config`."""
    asked: dict[str, Any] = {}
    thinking = fields.mapping(request.get("thinking", {}), "thinking")
    kind = thinking.get("type")
    if kind == "disabled":
        asked["reasoning_budget"] = 0
    elif kind is not None:
        given = request.get("chat_template_kwargs", {})
        asked["chat_template_kwargs"] = {
            "enable_thinking": True,
            **fields.mapping(given, "chat_template_kwargs"),
        }
        if kind == "enabled":
            asked["reasoning_budget"] = fields.count(thinking.get("budget_tokens"), "thinking.budget_tokens")
    output = fields.mapping(request.get("output_config", {}), "output_config")
    if "effort" in output:
        asked["reasoning_effort"] = fields.effort(output["effort"], "output_config.effort")
    if "format" in output:
        form = fields.mapping(output["format"], "output_config.format")
        asked["response_format"] = fields.schema_format(form.get("schema"), "output_config.format.schema")
    return asked


# Answers


def answer(_request: Mapping[str, Any], made: Mapping[str, Any]) -> dict[str, Any]:
    """Return the message for a chat completion."""
    choice = made["choices"][0]
    end = end_of(choice)
    blocks = [_whole(piece, is_cut=end.reason == "length") for piece in pieces_of(choice["message"])]
    message = _message(made, made["usage"], [block for block in blocks if block is not None], end)
    return {**message, **figures_of(made)}


def _message(
    made: Mapping[str, Any], usage: Mapping[str, Any], blocks: list[dict[str, Any]], end: End | None
) -> dict[str, Any]:
    return {
        "id": f"msg_{own_id(made)}",
        "type": "message",
        "role": "assistant",
        "model": made["model"],
        "content": blocks,
        **_ending(end),
        "usage": _usage(usage),
    }


def _whole(piece: Piece, *, is_cut: bool) -> dict[str, Any] | None:
    """Return a block; None for a call that was cut in the middle."""
    block = _empty(piece)
    if piece.kind == "call":
        try:
            block["input"] = json.loads(piece.text or "{}")
        except ValueError:
            block["input"] = None
        if not isinstance(block["input"], dict):
            if is_cut:
                return None
            block["input"] = {}  # the tool reports what is missing
        return block
    return {**block, {"reasoning": "thinking"}.get(piece.kind, "text"): piece.text}


def _empty(piece: Piece) -> dict[str, Any]:
    if piece.kind == "reasoning":
        return {"type": "thinking", "thinking": "", "signature": ""}
    if piece.kind == "text":
        return {"type": "text", "text": ""}
    return {"type": "tool_use", "id": piece.id, "name": piece.name, "input": {}}


def _ending(end: End | None) -> dict[str, Any]:
    if end is None:
        return {"stop_reason": None, "stop_sequence": None}
    if end.stop is not None:
        return {"stop_reason": "stop_sequence", "stop_sequence": end.stop}
    return {"stop_reason": REASONS[end.reason], "stop_sequence": None}


def _usage(usage: Mapping[str, Any]) -> dict[str, int]:
    cached = usage.get("prompt_tokens_details", {}).get("cached_tokens", 0)
    return {
        "input_tokens": usage.get("prompt_tokens", 0) - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": usage.get("completion_tokens", 0),
    }


class MessageEvents(Translator):
    """Turns a streamed chat into the events of a message."""

    def __init__(self, _request: Mapping[str, Any]) -> None:
        super().__init__()
        self._index = -1
        self._kind = ""

    def _begin(self, made: Mapping[str, Any], usage: Mapping[str, Any]) -> Iterator[Event]:
        yield {"type": "message_start", "message": _message(made, usage, [], None)}

    def _start(self, piece: Piece) -> Iterator[Event]:
        self._index += 1
        self._kind = piece.kind
        yield {"type": "content_block_start", "index": self._index, "content_block": _empty(piece)}

    def _more(self, piece: Piece) -> Iterator[Event]:
        if piece.kind == "reasoning":
            yield self._delta({"type": "thinking_delta", "thinking": piece.text})
        elif piece.kind == "text":
            yield self._delta({"type": "text_delta", "text": piece.text})
        else:
            yield self._delta({"type": "input_json_delta", "partial_json": piece.text})

    def _stop(self, end: End | None) -> Iterator[Event]:
        if self._kind == "reasoning":
            yield self._delta({"type": "signature_delta", "signature": ""})  # there is no signature here
        yield {"type": "content_block_stop", "index": self._index}

    def _finish(self, end: End, usage: Mapping[str, Any]) -> Iterator[Event]:
        yield {"type": "message_delta", "delta": _ending(end), "usage": _usage(usage), **self._figures}
        yield {"type": "message_stop"}

    def fail(self, refusal: Refusal) -> Iterator[Event]:
        """Yield the error event of a refusal."""
        yield error(refusal)

    def _delta(self, delta: dict[str, str]) -> Event:
        return {"type": "content_block_delta", "index": self._index, "delta": delta}


def error(refusal: Refusal) -> dict[str, Any]:
    """Return the error body of a refusal, in Anthropic's form."""
    kind = ERRORS.get(refusal.status, "invalid_request_error" if refusal.status < 500 else "api_error")
    message = refusal.message
    if refusal.code == "context_length_exceeded":
        message = f"prompt is too long: {message}"  # clients that read these words shorten the prompt
    return {"type": "error", "error": {"type": kind, "message": message}}


PING = b'event: ping\ndata: {"type": "ping"}\n\n'

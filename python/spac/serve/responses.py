"""OpenAI's Responses: translates requests to chat requests, and answers to responses or their events.

A whole response is taken from the last event, so both forms are the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from spac.serve import fields
from spac.serve.fields import Turns, refuse
from spac.serve.pieces import End, Event, Piece, Translator, own_id
from spac.serve.refusal import Refusal

INPUT = {"input_text": "text", "output_text": "text", "text": "text", "refusal": "refusal"}
REASONING = {"reasoning_text": "text", "summary_text": "text"}
STORED = ("previous_response_id", "conversation", "prompt")
"""Fields that refer to something that a server would have stored."""

ECHOED = ("instructions", "max_output_tokens", "metadata", "reasoning", "temperature", "top_p", "user")
"""Fields of its request that a response repeats."""


# Requests


def chat(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the chat request for a request for a response; raise Refusal if it is invalid."""
    for name in STORED:
        if name in request:
            raise refuse(name, "nothing is stored here: send the whole conversation as input")
    if fields.flag(request.get("background", False), "background"):
        raise refuse("background", "responses are made while the client waits, not in the background")
    asked = {**fields.passed(request), "messages": _messages(request), **_tools(request)}
    if "max_output_tokens" in request:
        asked["max_tokens"] = fields.count(request["max_output_tokens"], "max_output_tokens")
    if "parallel_tool_calls" in request:
        asked["parallel_tool_calls"] = request["parallel_tool_calls"]
    reasoning = fields.mapping(request.get("reasoning", {}), "reasoning")
    if "effort" in reasoning:
        asked["reasoning_effort"] = fields.effort(reasoning["effort"], "reasoning.effort")
    form = fields.mapping(
        fields.mapping(request.get("text", {}), "text").get("format", {"type": "text"}), "text.format"
    )
    if form.get("type") == "json_schema":
        asked["response_format"] = fields.schema_format(form.get("schema"), "text.format.schema")
    elif form.get("type") == "json_object":
        asked["response_format"] = {"type": "json_object"}
    elif form.get("type") != "text":
        raise refuse("text.format.type", "text, json_object or json_schema is needed")
    if asked.get("stream"):
        asked["stream_options"] = {"include_usage": True}
    return asked


def _messages(request: Mapping[str, Any]) -> list[dict[str, Any]]:
    turns = Turns()
    turns.system(fields.joined(request.get("instructions", ""), "instructions", INPUT))
    given = request.get("input")
    if isinstance(given, str):
        turns.user(given)
    else:
        for where, item in fields.mappings(given, "input"):
            _read(turns, item, where)
    messages = turns.all()
    if not messages:
        raise refuse("input", "a text or at least one item is needed")
    return messages


def _read(turns: Turns, item: Mapping[str, Any], where: str) -> None:
    kind = item.get("type", "message")
    if kind == "message":
        _read_message(turns, item, where)
    elif kind == "reasoning":  # its text may be missing, or only a summary
        parts = item.get("content") or item.get("summary") or []
        turns.assistant(reasoning=fields.joined(parts, f"{where}.content", REASONING))
    elif kind == "function_call":
        call, name = (fields.name(item.get(key), f"{where}.{key}") for key in ("call_id", "name"))
        arguments = fields.text(item.get("arguments"), f"{where}.arguments")
        turns.call(call, _flat(item.get("namespace"), name), arguments)
    elif kind == "function_call_output":
        call = fields.name(item.get("call_id"), f"{where}.call_id")
        turns.tool(call, fields.content(item.get("output"), f"{where}.output", INPUT, _image))
    elif kind == "item_reference":
        raise refuse(where, "nothing is stored here: send the item itself")
    else:
        raise refuse(where, f"an item of type {kind!r} cannot be read here")


def _read_message(turns: Turns, item: Mapping[str, Any], where: str) -> None:
    role, given = item.get("role"), item.get("content")
    if role == "user":
        turns.user(fields.content(given, f"{where}.content", INPUT, _image))
        return
    content = fields.joined(given, f"{where}.content", INPUT, "" if role == "assistant" else "\n")
    if role == "assistant":
        turns.assistant(content)
    elif role in ("system", "developer"):
        turns.system(content)
    else:
        raise refuse(f"{where}.role", f"user, assistant, system or developer is needed, not {role!r}")


def _image(part: Mapping[str, Any], where: str) -> str | None:
    """Return the address of an image; None for another part."""
    if part.get("type") != "input_image":
        return None
    if "file_id" in part:
        raise refuse(f"{where}.file_id", "nothing is stored here: send the image as image_url")
    return fields.name(part.get("image_url"), f"{where}.image_url")


def _tools(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the chat fields for functions.

    Other tools are left out: they would run at the provider, and a model need not call them.
    """
    asked: dict[str, Any] = {}
    tools = [_tool(tool, space, where) for where, space, tool in _functions(request)]
    if tools:
        asked["tools"] = tools
    choice = request.get("tool_choice", "auto")
    if isinstance(choice, str):
        if choice not in ("auto", "none", "required"):
            raise refuse("tool_choice", f"auto, none or required is needed, not {choice!r}")
        if choice == "required" and not tools:
            raise refuse("tool_choice", "a call is required, and there is no function among the tools")
        return {**asked, "tool_choice": choice}
    named = fields.mapping(choice, "tool_choice")
    if named.get("type") != "function":
        raise refuse("tool_choice.type", f"only a function can be chosen here, not {named.get('type')!r}")
    name = _flat(named.get("namespace"), fields.name(named.get("name"), "tool_choice.name"))
    return {**asked, "tool_choice": {"type": "function", "function": {"name": name}}}


def _tool(tool: Mapping[str, Any], space: str | None, where: str) -> dict[str, Any]:
    name = _flat(space, fields.name(tool.get("name"), f"{where}.name"))
    schema = fields.data(tool.get("parameters", {"type": "object", "properties": {}}), f"{where}.parameters")
    return fields.function(name, tool.get("description"), schema, where)


def _functions(request: Mapping[str, Any]) -> Iterator[tuple[str, str | None, dict[str, Any]]]:
    """Yield the place, the namespace (or None) and the definition of each function."""
    for where, tool in fields.mappings(request.get("tools", []), "tools"):
        if tool.get("type") == "function":
            yield where, None, tool
        elif tool.get("type") == "namespace":
            space = fields.name(tool.get("name"), f"{where}.name")
            for place, inner in fields.mappings(tool.get("tools"), f"{where}.tools"):
                if inner.get("type") == "function":
                    yield place, space, inner


def _flat(space: Any, name: str) -> str:
    """Return a function's name for chats, which have no namespaces."""
    return f"{space}__{name}" if space else name


# Answers


def answer(request: Mapping[str, Any], made: Mapping[str, Any]) -> dict[str, Any]:
    """Return the response for a chat completion."""
    choice = made["choices"][0]
    delta = {**choice["message"]}
    chunk = {**made, "choices": [{**choice, "delta": delta}]}
    translator = ResponseEvents(request)
    last: Event = {}
    for event in (*translator.push(chunk), *translator.finish()):
        last = event
    response: dict[str, Any] = last["response"]
    return response


class ResponseEvents(Translator):
    """Turns a streamed chat into the events of a response."""

    def __init__(self, request: Mapping[str, Any]) -> None:
        super().__init__()
        self._request = request
        spaced = ((space, tool) for _, space, tool in _functions(request) if space is not None)
        self._spaced = {_flat(space, tool["name"]): (space, tool["name"]) for space, tool in spaced}
        self._number = -1
        self._own_id = ""
        self._response: dict[str, Any] = {}
        self._output: list[dict[str, Any]] = []

    def _begin(self, made: Mapping[str, Any], usage: Mapping[str, Any]) -> Iterator[Event]:
        self._own_id = own_id(made)
        self._response = {
            "id": f"resp_{self._own_id}",
            "object": "response",
            "created_at": made["created"],
            "model": made["model"],
            "status": "in_progress",
            "error": None,
            "incomplete_details": None,
            "output": [],
            "usage": None,
            **{name: self._request.get(name) for name in ECHOED},
            "background": False,
            "parallel_tool_calls": self._request.get("parallel_tool_calls", True),
            "previous_response_id": None,
            "store": False,
            "text": {"format": {"type": "text"}, **(self._request.get("text") or {})},
            "tool_choice": self._request.get("tool_choice", "auto"),
            "tools": self._request.get("tools", []),
            "truncation": "disabled",
        }
        yield self._event("response.created", response=self._response)
        yield self._event("response.in_progress", response=self._response)

    def _start(self, piece: Piece) -> Iterator[Event]:
        self._output.append(self._item(piece))
        yield self._event("response.output_item.added", **self._at(), item=self._output[-1])
        if piece.kind != "call":
            part = _part(piece.kind, "")
            self._output[-1]["content"] = [part]
            yield self._event("response.content_part.added", **self._in(), part=part)

    def _more(self, piece: Piece) -> Iterator[Event]:
        item = self._output[-1]
        if piece.kind == "call":
            item["arguments"] += piece.text
            yield self._event("response.function_call_arguments.delta", **self._of(), delta=piece.text)
            return
        item["content"][0]["text"] += piece.text
        more: dict[str, Any] = {"logprobs": []} if piece.kind == "text" else {}
        yield self._event(f"response.{_part_type(item)}.delta", **self._in(), delta=piece.text, **more)

    def _stop(self, end: End | None) -> Iterator[Event]:
        item = self._output[-1]
        item["status"] = "incomplete" if end is not None and end.reason == "length" else "completed"
        if item["type"] == "function_call":
            given = {"name": item["name"], "arguments": item["arguments"]}
            yield self._event("response.function_call_arguments.done", **self._of(), **given)
        else:
            part = item["content"][0]
            more: dict[str, Any] = {"logprobs": []} if item["type"] == "message" else {}
            yield self._event(f"response.{_part_type(item)}.done", **self._in(), text=part["text"], **more)
            yield self._event("response.content_part.done", **self._in(), part=part)
        yield self._event("response.output_item.done", **self._at(), item=item)

    def _finish(self, end: End, usage: Mapping[str, Any]) -> Iterator[Event]:
        status = "incomplete" if end.reason == "length" else "completed"
        why = {"reason": "max_output_tokens"} if status == "incomplete" else None
        whole = {**self._response, "status": status, "incomplete_details": why, "output": self._output}
        figures = {"usage": _usage(usage), **self._figures}
        yield self._event(f"response.{status}", response={**whole, **figures})

    def fail(self, refusal: Refusal) -> Iterator[Event]:
        """Yield the event of a failed response."""
        code = "invalid_prompt" if refusal.status < 500 else "server_error"
        error = {"code": code, "message": refusal.message}
        whole = {**self._response, "status": "failed", "error": error, "output": self._output}
        yield self._event("response.failed", response=whole)

    def _item(self, piece: Piece) -> dict[str, Any]:
        def own(kind: str) -> dict[str, Any]:
            return {"id": f"{kind}_{self._own_id}_{len(self._output)}", "status": "in_progress"}

        if piece.kind == "reasoning":
            return {"type": "reasoning", **own("rs"), "summary": [], "content": []}
        if piece.kind == "text":
            return {"type": "message", **own("msg"), "role": "assistant", "content": []}
        space, name = self._spaced.get(piece.name, (None, piece.name))
        item = {"type": "function_call", **own("fc"), "call_id": piece.id, "name": name, "arguments": ""}
        return item if space is None else {**item, "namespace": space}

    def _event(self, kind: str, **said: Any) -> Event:
        self._number += 1
        return {"type": kind, "sequence_number": self._number, **said}

    def _at(self) -> dict[str, Any]:
        return {"output_index": len(self._output) - 1}

    def _of(self) -> dict[str, Any]:
        return {"item_id": self._output[-1]["id"], **self._at()}

    def _in(self) -> dict[str, Any]:
        return {**self._of(), "content_index": 0}


def _part_type(item: Mapping[str, Any]) -> str:
    return "reasoning_text" if item["type"] == "reasoning" else "output_text"


def _part(kind: str, text: str) -> dict[str, Any]:
    if kind == "reasoning":
        return {"type": "reasoning_text", "text": text}
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _usage(usage: Mapping[str, Any]) -> dict[str, Any]:
    n_in, n_out = usage.get("prompt_tokens", 0), usage.get("completion_tokens", 0)
    cached = usage.get("prompt_tokens_details", {}).get("cached_tokens", 0)
    reasoned = usage.get("completion_tokens_details", {}).get("reasoning_tokens", 0)
    return {
        "input_tokens": n_in,
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
        "output_tokens": n_out,
        "output_tokens_details": {"reasoning_tokens": reasoned},
        "total_tokens": n_in + n_out,
    }

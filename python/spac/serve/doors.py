"""Chats in other interfaces than that of chat completions: which there are, how each is asked and told."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from spac.serve import messages, responses
from spac.serve.pieces import Telling, encoded
from spac.serve.refusal import Refusal

CHAT = "/v1/chat/completions"


@dataclass(frozen=True)
class Door:
    """One of them; each request to it is a chat request in other words."""

    chat: Callable[[Mapping[str, Any]], dict[str, Any]]
    """The chat request that a request is. Raises Refusal."""
    answer: Callable[[Mapping[str, Any], Mapping[str, Any]], dict[str, Any]]
    """What a chat completion is in answer to a request."""
    telling: Callable[[Mapping[str, Any]], Telling] | None = None
    """What tells a stream; None where there are none."""
    ping: bytes = b": ping\n\n"
    """What keeps a stream alive while nothing is told."""
    counts: bool = False
    """Whether only the prompt's tokens are counted."""


DOORS = {
    "/v1/messages": Door(messages.chat, messages.answer, messages.MessageEvents, messages.PING),
    "/v1/messages/count_tokens": Door(
        messages.count, lambda _request, made: {"input_tokens": made["usage"]["prompt_tokens"]}, counts=True
    ),
    "/v1/responses": Door(responses.chat, responses.answer, responses.ResponseEvents),
}
"""By path."""


def translated(path: str, body: bytes) -> tuple[str, bytes, dict[str, Any] | None]:
    """The path and the body of the request that `checks` knows, and what was asked where that is in other
    words. A body that is no request is left as it is. Raises Refusal."""
    door = DOORS.get(path)
    if door is None:
        return path, body, None
    try:
        request = json.loads(body)
    except (ValueError, RecursionError):
        request = None
    if not isinstance(request, dict):
        return CHAT, body, None
    request = {name: value for name, value in request.items() if value is not None}
    return CHAT, json.dumps(door.chat(request)).encode(), request


def refusal_body(path: str, refusal: Refusal) -> dict[str, Any]:
    """What a client of this path is told of a fault."""
    return messages.error(refusal) if _is_anthropics(path) else refusal.body()


def refusal_event(path: str, refusal: Refusal) -> bytes:
    """The same as an event of a stream that has begun."""
    return encoded(messages.error(refusal)) if _is_anthropics(path) else refusal.event()


def _is_anthropics(path: str) -> bool:
    return path == "/v1/messages" or path.startswith("/v1/messages/")

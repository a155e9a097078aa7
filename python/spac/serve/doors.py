"""Interfaces to chats beside chat completions: their paths, and the translation of requests and answers."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from spac.serve import messages, native, responses
from spac.serve.pieces import Translator, encoded
from spac.serve.refusal import Refusal

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


@dataclass(frozen=True)
class Door:
    """One interface; it translates its requests to chat requests, and their answers back."""

    chat: Callable[[Mapping[str, Any]], dict[str, Any]]
    """Function that returns the chat request for a request. It raises Refusal."""
    answer: Callable[[Mapping[str, Any], Mapping[str, Any]], dict[str, Any]]
    """Function that returns the answer to a request from its chat completion."""
    translator: Callable[[Mapping[str, Any]], Translator] | None = None
    """Class that turns a streamed chat into events; None if the interface has no streams."""
    ping: bytes = b": ping\n\n"
    """Bytes that keep a stream alive while it has no events."""
    counts: bool = False
    """True if the interface only counts the prompt's tokens."""


DOORS = {
    "/v1/messages": Door(messages.chat, messages.answer, messages.MessageEvents, messages.PING),
    "/v1/messages/count_tokens": Door(
        messages.count, lambda _request, made: {"input_tokens": made["usage"]["prompt_tokens"]}, counts=True
    ),
    "/v1/responses": Door(responses.chat, responses.answer, responses.ResponseEvents),
}
"""The interfaces by path."""


def translated(path: str, body: bytes) -> tuple[str, bytes, dict[str, Any] | None]:
    """Return the path and the body of the request for `checks`, and the original of a translated request.

    The original is None if nothing was translated. A body that is no JSON object is returned unchanged, and
    `checks` refuses it. Raises Refusal.
    """
    if path in DOORS:
        known, translate = CHAT, DOORS[path].chat
    elif path == native.PATH:
        known, translate = COMPLETIONS, native.completion
    else:
        return path, body, None
    try:
        request = json.loads(body)
    except (ValueError, RecursionError):
        request = None
    if not isinstance(request, dict):
        return known, body, None
    request = {name: value for name, value in request.items() if value is not None}
    return known, json.dumps(translate(request)).encode(), request


def refusal_body(path: str, refusal: Refusal) -> dict[str, Any]:
    """Return the error body for a client of this path."""
    return messages.error(refusal) if _is_anthropics(path) else refusal.body()


def refusal_event(path: str, refusal: Refusal) -> bytes:
    """Return the error as an event of a stream that has begun."""
    return encoded(messages.error(refusal)) if _is_anthropics(path) else refusal.event()


def _is_anthropics(path: str) -> bool:
    return path == "/v1/messages" or path.startswith("/v1/messages/")

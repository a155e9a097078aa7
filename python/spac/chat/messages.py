"""Changes to lists of messages for templates: the message to continue, and the place of a system prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from spac.errors import InputError


def split_begun(messages: Sequence[Any], thinking: bool) -> tuple[list[Any], dict[str, Any] | None]:
    """Return the messages before the one that the answer continues, and that one or None.

    Raise InputError if the last message cannot be continued.
    """
    if not messages or not _is_assistants(messages[-1]):
        return list(messages), None
    *before, last = messages
    if before and _is_assistants(before[-1]):
        raise InputError("messages: the last two are the assistant's, and only one can be continued")
    if last.get("tool_calls"):
        raise InputError(
            "messages: a call of tools cannot be continued: its result, of the role tool, is due"
        )
    if not text_of(last) and not last.get("reasoning_content"):
        return before, None
    if not text_of(last) and not thinking:
        raise InputError("messages: the last one has a reasoning to continue, and reasoning is turned off")
    return before, {**last, "content": last.get("content") or ""}


def _is_assistants(message: Any) -> bool:
    return isinstance(message, Mapping) and message.get("role") == "assistant"


def text_of(message: Mapping[str, Any]) -> str:
    """Return the text of a message's content, also if the content is in parts."""
    content = message.get("content") or ""
    if not isinstance(content, list):
        return str(content)
    texts = (part.get("text") or "" for part in content if isinstance(part, Mapping))
    return "\n\n".join(map(str, texts))  # the library joins them so


def folded(messages: Sequence[Any]) -> list[Any]:
    """Return the messages with the system prompt at the beginning of the first message.

    This is for templates that have no place for a system prompt.
    """
    if len(messages) < 2 or not all(isinstance(message, Mapping) for message in messages[:2]):
        return list(messages)
    system, first, *others = messages
    contents = [system.get("content") or "", first.get("content") or ""]
    if system.get("role") not in ("system", "developer") or not all(
        isinstance(content, str | list) for content in contents
    ):
        return list(messages)
    if all(isinstance(content, str) for content in contents):
        return [{**first, "content": "\n".join(contents)}, *others]
    return [{**first, "content": [part for content in contents for part in _parts(content)]}, *others]


def _parts(content: str | list[Any]) -> list[Any]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content

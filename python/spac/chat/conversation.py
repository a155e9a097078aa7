"""A conversation: a system prompt and exchanges, which a file can keep."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from spac.errors import InputError
from spac.machine.files import read_plain, unreadable, write_atomically

Message = dict[str, Any]
"""A message of a chat template.

Its keys are `role` (system, user, assistant), `content` and, if an assistant reasoned, `reasoning_content`.
The content of a user's message with images is a list of OpenAI's parts, else a text.
"""

SCHEMA = 1
"""The version of the file's format. It rises when a field changes its meaning."""


@dataclass(frozen=True)
class Exchange:
    """A message and its answer, which may have been stopped halfway."""

    user: str
    assistant: str
    reasoning: str = ""
    """The model's reasoning before the answer."""
    images: tuple[str, ...] = ()
    """The data: addresses of the images that stand before the message."""


@dataclass
class Conversation:
    """A system prompt ("" for none) and the exchanges, oldest first."""

    system: str = ""
    exchanges: list[Exchange] = field(default_factory=list)

    def messages(self, then: str | None = None, skip: int = 0, images: Sequence[str] = ()) -> list[Message]:
        """Return the messages for a chat template, without the oldest `skip` exchanges.

        The user's message `then` comes last, with `images` before it.
        """
        messages: list[Message] = [{"role": "system", "content": self.system}] if self.system else []
        for exchange in self.exchanges[skip:]:
            messages.append({"role": "user", "content": _content(exchange.user, exchange.images)})
            messages.append({"role": "assistant", "content": exchange.assistant})
            if exchange.reasoning:  # the template decides if the model sees it again
                messages[-1]["reasoning_content"] = exchange.reasoning
        if then is not None:
            messages.append({"role": "user", "content": _content(then, images)})
        return messages

    def save(self, path: Path) -> None:
        """Write a JSON file whole or not at all. Raise InputError if it cannot be written.

        Only its owner may read a new file.
        """
        text = json.dumps({"spac_chat": SCHEMA, "messages": self.messages()}, indent=1, ensure_ascii=False)
        write_atomically(path, (text + "\n").encode("utf-8", "replace"), 0o600)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a file of `save`, or a list of OpenAI's messages.

        Raise InputError if the file cannot be read, or if it is not a conversation.
        """
        try:
            found = json.loads(read_plain(path).decode())
        except (OSError, ValueError, RecursionError) as error:
            raise unreadable(path, error) from None
        if isinstance(found, dict) and found.get("spac_chat", SCHEMA) != SCHEMA:
            raise InputError(f"{path}: a conversation of another version of spac")
        messages = found.get("messages") if isinstance(found, dict) else found
        try:
            return cls._of(messages)
        except (TypeError, KeyError, AttributeError, ValueError):
            raise InputError(
                f"{path}: no conversation: messages of role and content, user and assistant in turn"
            ) from None

    @classmethod
    def _of(cls, messages: Any) -> Self:
        said = [
            (message["role"], *_read(message["content"]), message.get("reasoning_content") or "")
            for message in messages
        ]
        if not all(isinstance(text, str) for _, content, _, thought in said for text in (content, thought)):
            raise ValueError
        conversation = cls()
        if said and said[0][0] == "system":
            conversation.system = said.pop(0)[1]
        if [role for role, *_ in said] != ["user", "assistant"] * (len(said) // 2):
            raise ValueError
        conversation.exchanges = [
            Exchange(user, content, reasoning, images)
            for (_, user, images, _), (_, content, _, reasoning) in zip(said[::2], said[1::2], strict=True)
        ]
        return conversation


def _content(text: str, images: Sequence[str]) -> str | list[dict[str, Any]]:
    """Return the content of a message with images before its text."""
    if not images:
        return text
    parts = [{"type": "image_url", "image_url": {"url": url}} for url in images]
    return [*parts, {"type": "text", "text": text}]


def _read(content: Any) -> tuple[Any, tuple[str, ...]]:
    """Return the text and the images of a content."""
    if not isinstance(content, list):
        return content, ()
    text = "\n".join(part["text"] for part in content if part["type"] == "text")
    images = tuple(part["image_url"]["url"] for part in content if part["type"] != "text")
    return text, images

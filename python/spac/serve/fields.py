"""Readers of a request's fields.

A reader raises Refusal for an invalid field, and names it by its place in the request.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from spac.serve.refusal import Refusal

Image = Callable[[Mapping[str, Any], str], str | None]
"""A function that returns the address of the image in a part at a place; None if it is none."""
PASSED = (
    "model", "stream", "temperature", "top_p", "top_k", "min_p", "seed", "grammar", "logit_bias",
    "min_tokens", "repeat_penalty", "presence_penalty", "frequency_penalty", "mirostat_mode", "mirostat_tau",
    "mirostat_eta", "chat_template_kwargs", "reasoning_budget", "continue_final_message",
)  # fmt: skip
"""Fields that mean the same in every interface to chats, the interface's own ones and llama.cpp's."""


def refuse(where: str, why: str) -> Refusal:
    """Return the refusal of a field; the caller raises it."""
    return Refusal(400, f"{where}: {why}", param=where)


def text(value: Any, where: str) -> str:
    """Return a string, which may be empty."""
    if not isinstance(value, str):
        raise refuse(where, "a string is needed")
    return value


def name(value: Any, where: str) -> str:
    """Return a string that has at least one character."""
    if not isinstance(value, str) or not value:
        raise refuse(where, "a string is needed, not an empty one")
    return value


def data(value: Any, where: str) -> dict[str, Any]:
    """Return an object unchanged."""
    if not isinstance(value, dict):
        raise refuse(where, "an object is needed")
    return value


def mapping(value: Any, where: str) -> dict[str, Any]:
    """Return an object without its null fields, which count as absent."""
    return {key: inner for key, inner in data(value, where).items() if inner is not None}


def mappings(value: Any, where: str) -> list[tuple[str, dict[str, Any]]]:
    """Return the objects of a list, each with its place."""
    if not isinstance(value, list):
        raise refuse(where, "a list of objects is needed")
    places = [f"{where}.{index}" for index in range(len(value))]
    return [(place, mapping(item, place)) for place, item in zip(places, value, strict=True)]


def blocks(value: Any, where: str) -> list[tuple[str, dict[str, Any]]]:
    """Return the objects of a content, each with its place; a string counts as one block of text."""
    if not isinstance(value, str | list):
        raise refuse(where, "a string or a list of objects is needed")
    return mappings([{"type": "text", "text": value}] if isinstance(value, str) else value, where)


def flag(value: Any, where: str) -> bool:
    """Return a boolean."""
    if not isinstance(value, bool):
        raise refuse(where, "true or false is needed")
    return value


def count(value: Any, where: str) -> int:
    """Return a number of tokens, at least 1."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise refuse(where, "a whole number of at least 1 is needed")
    return value


def joined(value: Any, where: str, kinds: Mapping[str, str], between: str = "\n") -> str:
    """Return a text that comes as a string, or as a list of parts to join with `between`.

    `kinds` maps the types of parts to the fields that hold their text.
    """
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise refuse(where, "a string or a list is needed")
    return between.join(part(item, place, kinds) for place, item in mappings(value, where))


def part(item: Mapping[str, Any], where: str, kinds: Mapping[str, str]) -> str:
    """Return one part's text."""
    kind = item.get("type")
    if not isinstance(kind, str) or kind not in kinds:
        raise refuse(where, f"only text can be read here, not a part of type {kind!r}")
    return text(item.get(kinds[kind]), f"{where}.{kinds[kind]}")


Content = str | list[dict[str, Any]]
"""The content of a chat's message: text, or parts if it has images."""


def content(value: Any, where: str, kinds: Mapping[str, str], image: Image, between: str = "\n") -> Content:
    """Return a content that comes as a string, or as a list of parts.

    Texts alone are joined as `joined` does. `image` returns the address of an image in one of the parts.
    """
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise refuse(where, "a string or a list is needed")
    return contents([seen(item, place, kinds, image) for place, item in mappings(value, where)], between)


def seen(item: Mapping[str, Any], where: str, kinds: Mapping[str, str], image: Image) -> dict[str, Any]:
    """Return a part of text or of an image in the form of chat requests."""
    address = image(item, where)
    if address is not None:
        return {"type": "image_url", "image_url": {"url": address}}
    return {"type": "text", "text": part(item, where, kinds)}


def contents(parts: Sequence[dict[str, Any]], between: str) -> Content:
    """Return the content of these parts: their texts joined, or the parts if there is an image."""
    if any(each["type"] != "text" for each in parts):
        return list(parts)
    return between.join(each["text"] for each in parts)


def _both(first: Content, second: Content) -> Content:
    """Return two contents as one."""
    if isinstance(first, str) and isinstance(second, str):
        return "\n\n".join(filter(None, (first, second)))
    parts: list[dict[str, Any]] = []
    for each in (first, second):
        if not isinstance(each, str):
            parts += each
        elif each:
            parts.append({"type": "text", "text": each})
    return parts


class Turns:
    """Builds a chat's messages, one after another.

    Templates expect one system prompt at the front, and many expect user and assistant to alternate. So
    successive messages of one of them become one message. A later system prompt becomes the user's text.
    """

    def __init__(self) -> None:
        self._system: list[str] = []
        self._shown: list[dict[str, Any]] = []  # images of results that the next message of the user shows
        self._messages: list[dict[str, Any]] = []

    def system(self, content: str) -> None:
        """Add text to the system prompt, or to the user's messages if there is a message already."""
        if self._messages:
            self.user(content)
        elif content:
            self._system.append(content)

    def user(self, content: Content) -> None:
        """Add a content of the user, after the images of tools' results."""
        if self._shown:
            content, self._shown = _both(self._shown, content), []
        last = self._last("user")
        if last is None:
            self._messages.append({"role": "user", "content": content})
        else:
            last["content"] = _both(last["content"], content)

    def tool(self, call: str, content: Content) -> None:
        """Add the result of a tool call.

        Templates expect a text. So its images stand in the user's next message.
        """
        if not isinstance(content, str):
            self._shown += [part for part in content if part["type"] != "text"]
            content = "\n".join(part["text"] for part in content if part["type"] == "text")
        self._messages.append({"role": "tool", "tool_call_id": call, "content": content})

    def assistant(self, content: str = "", *, reasoning: str = "") -> None:
        """Add text and reasoning of the assistant."""
        last = self._answer()
        last["content"] += content
        if reasoning:
            last["reasoning_content"] = last.get("reasoning_content", "") + reasoning

    def call(self, id_: str, name: str, arguments: str) -> None:
        """Add a tool call of the assistant; `arguments` is JSON text."""
        function = {"name": name, "arguments": arguments}
        calls = self._answer().setdefault("tool_calls", [])
        calls.append({"id": id_, "type": "function", "function": function})

    def all(self) -> list[dict[str, Any]]:
        """Return the messages, the system prompt first."""
        self._show()
        system = "\n".join(self._system)
        return [*([{"role": "system", "content": system}] if system else ()), *self._messages]

    def _last(self, role: str) -> dict[str, Any] | None:
        return self._messages[-1] if self._messages and self._messages[-1]["role"] == role else None

    def _show(self) -> None:
        if self._shown:
            self.user([])

    def _answer(self) -> dict[str, Any]:
        self._show()
        last = self._last("assistant")
        if last is None:
            last = {"role": "assistant", "content": ""}
            self._messages.append(last)
        return last


def function(name_: str, description: Any, parameters: Any, where: str) -> dict[str, Any]:
    """Return a tool in the form of chat requests."""
    described = {} if description is None else {"description": text(description, f"{where}.description")}
    return {"type": "function", "function": {"name": name_, **described, "parameters": parameters}}


def schema_format(schema: Any, where: str) -> dict[str, Any]:
    """Return the `response_format` of an answer that follows a schema."""
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": data(schema, where)}}


def effort(value: Any, where: str) -> str:
    """Return the reasoning effort; "high" is the highest that templates know."""
    word = name(value, where)
    return {"xhigh": "high", "max": "high"}.get(word, word)


def passed(request: Mapping[str, Any], but: Sequence[str] = ()) -> dict[str, Any]:
    """Return the fields that mean the same in a chat request, without those in `but`."""
    return {key: request[key] for key in PASSED if key in request and key not in but}

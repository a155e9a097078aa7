"""Reading a request field by field: what is not as it has to be is refused by its place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from spac.serve.refusal import Refusal

PASSED = (
    "model", "stream", "temperature", "top_p", "top_k", "min_p", "seed", "grammar", "logit_bias",
    "min_tokens", "repeat_penalty", "presence_penalty", "frequency_penalty", "mirostat_mode", "mirostat_tau",
    "mirostat_eta", "chat_template_kwargs", "reasoning_budget", "continue_final_message",
)  # fmt: skip
"""What every interface to chats means alike; of its own, or of llama.cpp's."""


def refuse(where: str, why: str) -> Refusal:
    """To be raised."""
    return Refusal(400, f"{where}: {why}", param=where)


def text(value: Any, where: str) -> str:
    """A string, maybe an empty one."""
    if not isinstance(value, str):
        raise refuse(where, "a string is needed")
    return value


def name(value: Any, where: str) -> str:
    """A string that is not empty."""
    if not isinstance(value, str) or not value:
        raise refuse(where, "a string is needed, not an empty one")
    return value


def data(value: Any, where: str) -> dict[str, Any]:
    """An object, as it is."""
    if not isinstance(value, dict):
        raise refuse(where, "an object is needed")
    return value


def mapping(value: Any, where: str) -> dict[str, Any]:
    """An object; what it leaves open is not said, rather than said to be null."""
    return {key: inner for key, inner in data(value, where).items() if inner is not None}


def mappings(value: Any, where: str) -> list[tuple[str, dict[str, Any]]]:
    """The objects of a list, each with its place."""
    if not isinstance(value, list):
        raise refuse(where, "a list of objects is needed")
    places = [f"{where}.{index}" for index in range(len(value))]
    return [(place, mapping(item, place)) for place, item in zip(places, value, strict=True)]


def blocks(value: Any, where: str) -> list[tuple[str, dict[str, Any]]]:
    """The same of a content that may also be a string, which is one block of text."""
    if not isinstance(value, str | list):
        raise refuse(where, "a string or a list of objects is needed")
    return mappings([{"type": "text", "text": value}] if isinstance(value, str) else value, where)


def flag(value: Any, where: str) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise refuse(where, "true or false is needed")
    return value


def count(value: Any, where: str) -> int:
    """A number of tokens, at least 1."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise refuse(where, "a whole number of at least 1 is needed")
    return value


def joined(value: Any, where: str, kinds: Mapping[str, str], between: str = "\n") -> str:
    """Text that comes as a string, or as a list of parts: `kinds` has their types, and the field of each that
    holds its text."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise refuse(where, "a string or a list is needed")
    return between.join(part(item, place, kinds) for place, item in mappings(value, where))


def part(item: Mapping[str, Any], where: str, kinds: Mapping[str, str]) -> str:
    """One part's text."""
    kind = item.get("type")
    if not isinstance(kind, str) or kind not in kinds:
        raise refuse(where, f"only text can be read here, not a part of type {kind!r}")
    return text(item.get(kinds[kind]), f"{where}.{kinds[kind]}")


class Turns:
    """A chat's messages, put together one after another.

    Templates want one system prompt, in front, and many that user and assistant take turns. So what follows
    itself becomes one message, and a system prompt in the middle is told by the user.
    """

    def __init__(self) -> None:
        self._system: list[str] = []
        self._messages: list[dict[str, Any]] = []

    def system(self, content: str) -> None:
        if self._messages:
            self.user(content)
        elif content:
            self._system.append(content)

    def user(self, content: str) -> None:
        last = self._last("user")
        if last is None:
            self._messages.append({"role": "user", "content": content})
        else:
            last["content"] = "\n\n".join(filter(None, (last["content"], content)))

    def tool(self, call: str, content: str) -> None:
        """What a call gave."""
        self._messages.append({"role": "tool", "tool_call_id": call, "content": content})

    def assistant(self, content: str = "", *, reasoning: str = "") -> None:
        last = self._answer()
        last["content"] += content
        if reasoning:
            last["reasoning_content"] = last.get("reasoning_content", "") + reasoning

    def call(self, id_: str, name: str, arguments: str) -> None:
        """The assistant calls a tool; the arguments are JSON text."""
        function = {"name": name, "arguments": arguments}
        calls = self._answer().setdefault("tool_calls", [])
        calls.append({"id": id_, "type": "function", "function": function})

    def all(self) -> list[dict[str, Any]]:
        """The messages."""
        system = "\n".join(self._system)
        return [*([{"role": "system", "content": system}] if system else ()), *self._messages]

    def _last(self, role: str) -> dict[str, Any] | None:
        return self._messages[-1] if self._messages and self._messages[-1]["role"] == role else None

    def _answer(self) -> dict[str, Any]:
        last = self._last("assistant")
        if last is None:
            last = {"role": "assistant", "content": ""}
            self._messages.append(last)
        return last


def function(name_: str, description: Any, parameters: Any, where: str) -> dict[str, Any]:
    """A tool as chats know it."""
    told = {} if description is None else {"description": text(description, f"{where}.description")}
    return {"type": "function", "function": {"name": name_, **told, "parameters": parameters}}


def schema_format(schema: Any, where: str) -> dict[str, Any]:
    """The `response_format` of an answer that follows a schema."""
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": data(schema, where)}}


def effort(value: Any, where: str) -> str:
    """How much a model reasons; templates know no word beyond "high"."""
    word = name(value, where)
    return {"xhigh": "high", "max": "high"}.get(word, word)


def passed(request: Mapping[str, Any], but: Sequence[str] = ()) -> dict[str, Any]:
    """What means the same in a chat request."""
    return {key: request[key] for key in PASSED if key in request and key not in but}

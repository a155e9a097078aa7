"""Parts of the clients' scripts. Each runs where only its client is installed, so this needs Python alone."""

from __future__ import annotations

import asyncio
import inspect
import json
import sys
from collections.abc import Callable, Iterable
from typing import Any

try:
    from pydantic import BaseModel
except ImportError:  # no script of this client asks for `Numbers`
    BaseModel = object

_given = json.loads(sys.argv[1])
URL: str = _given["url"]
KEY: str = _given["key"]
ADDRESS = URL.removesuffix("/v1")
SAID = "hi there"
GRAMMAR = f'root ::= "{SAID}"'
LONG = "word " * 20_000
"""A prompt that no context of the server holds."""
NUMBERS = {
    "type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
    "required": ["a", "b"], "additionalProperties": False,
}  # fmt: skip
FORM = {"type": "json_schema", "json_schema": {"name": "numbers", "schema": NUMBERS}}
SAYING = {"extra_body": {"grammar": GRAMMAR}}
CALLS = {"tool_choice": "required", "parallel_tool_calls": False}
CHOICE = {"type": "function", "function": {"name": "add"}}
TOOL = {"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": NUMBERS}}


class Numbers(BaseModel):
    """NUMBERS as a class."""

    a: int
    b: int


def said(text: str) -> list[dict[str, str]]:
    """Return the messages of a chat."""
    return [{"role": "user", "content": text}]


USER = said("hello")


def run(checks: dict[str, Callable[[], Any]], ask: Callable[..., Any] | None = None) -> None:
    """Make checks. Print a line of JSON for each: its name, and its fault or null. Print a last line.

    `ask` takes a key and a text. It has to fail with a wrong key, and with a text that is too long.
    """
    if ask is not None:
        checks["wrong key"] = lambda: wrong_key(lambda: ask(key="x"))
        words = ("context size", "context length", "ContextWindow", "ContextOverflow")
        checks["too long prompt"] = lambda: refused(lambda: ask(text=LONG), *words)
    for name, check in checks.items():
        fault = None
        try:
            result = check()
            if inspect.iscoroutine(result):
                asyncio.run(result)
        except (Exception, SystemExit) as error:
            fault = f"{type(error).__name__}: {error}"
        print("\n" + json.dumps({"check": name, "fault": fault}), flush=True)
    print("all checks were made")


def same(found: object, wanted: object) -> None:
    """Expect two equal values."""
    assert found == wanted, f"{found!r}, not {wanted!r}"


def joined(parts: Iterable[str | None]) -> None:
    """Expect the parts of a stream to be what the grammar says."""
    texts = [part for part in parts if part]
    assert len(texts) > 1, f"one part: {texts}"
    same("".join(texts), SAID)


def numbers(arguments: str | dict[str, Any]) -> None:
    """Expect the arguments of TOOL, as JSON or as an object."""
    found = json.loads(arguments) if isinstance(arguments, str) else dict(arguments)
    same({name: type(value) for name, value in found.items()}, {"a": int, "b": int})


def refused(call: Callable[[], object], *words: str) -> None:
    """Expect an error whose class or text has one of the words."""
    try:
        call()
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
    else:
        raise AssertionError("there was no error")
    assert any(word in text for word in words), text


def wrong_key(call: Callable[[], object]) -> None:
    """Expect an error that tells of the key."""
    refused(call, "AuthenticationError", "401", "API Key", "API key")

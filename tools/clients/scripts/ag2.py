"""AG2: an agent with a tool, and with a typed answer."""

from __future__ import annotations

import asyncio
import contextlib

from ag2 import Agent
from ag2.config import OpenAIConfig

from tools.clients.shared import CALLS, KEY, SAID, SAYING, URL, Numbers, run, same

called = []


def add(a: int, b: int) -> int:
    """Add."""
    called.append((a, b))
    if len(called) > 1:  # each of its answers has to call
        raise SystemExit
    return 3


def config(key=KEY, **more):
    return OpenAIConfig(model="demo", base_url=URL, api_key=key, max_retries=0, max_tokens=200, **more)


def ask(settings, text="hello", **more):
    return asyncio.run(Agent("one", config=settings, **more).ask(text))


def tool_call():
    with contextlib.suppress(SystemExit):
        ask(config(**CALLS), tools=[add])
    same(len(called), 2)


async def structured_output():
    made = await Agent("one", config=config(), response_schema=Numbers).ask("hello")
    assert isinstance(await made.content(), Numbers)


def saying(**more):
    same(ask(config(**SAYING, **more)).body, SAID)


run({
    "chat": saying, "stream": lambda: saying(streaming=True), "tool call and its output": tool_call,
    "structured output": structured_output,
}, lambda key=KEY, text="hello": ask(config(key), text))  # fmt: skip

"""AutoGen: its client of OpenAI's interface, and an agent with a tool."""

from __future__ import annotations

import asyncio

from autogen_agentchat.agents import AssistantAgent
from autogen_core.models import ModelFamily, UserMessage
from autogen_core.tools import FunctionTool
from autogen_ext.models.openai import OpenAIChatCompletionClient
from pydantic import BaseModel

from tools.clients import shared
from tools.clients.shared import KEY, LONG, SAID, URL

INFO = {"vision": False, "function_calling": True, "json_output": True, "structured_output": True,
        "family": ModelFamily.UNKNOWN}  # fmt: skip
SAYING = {"extra_create_args": {"extra_body": {"grammar": shared.GRAMMAR}}}
called = []


class Numbers(BaseModel):
    a: int
    b: int


def add(a: int, b: int) -> int:
    """Add."""
    called.append((a, b))
    return 3


ADD = FunctionTool(add, description="Adds.")


def client(key=KEY, **more):
    return OpenAIChatCompletionClient(
        model="demo", base_url=URL, api_key=key, max_retries=0, max_tokens=200, model_info=INFO, **more
    )


def ask(*, key=KEY, text="hello", **more):
    return asyncio.run(client(key).create([UserMessage(content=text, source="user")], **more)).content


async def stream():
    made = client().create_stream([UserMessage(content="hello", source="user")], **SAYING)
    shared.joined([part async for part in made if isinstance(part, str)])


async def an_agent():
    calls = client(extra_body={"tool_choice": "required", "parallel_tool_calls": False})
    await AssistantAgent("one", calls, tools=[add]).run(task="hello")
    shared.same(len(called), 1)


shared.run({
    "chat": lambda: shared.same(ask(**SAYING), SAID), "stream": stream,
    "tool call": lambda: shared.numbers(ask(tools=[ADD], tool_choice=ADD)[0].arguments),
    "tool call of an agent": an_agent,
    "structured output": lambda: shared.numbers(ask(json_output=Numbers)),
    "wrong key": lambda: shared.wrong_key(lambda: ask(key="x")),
    "too long prompt": lambda: shared.too_long(lambda: ask(text=LONG)),
})  # fmt: skip

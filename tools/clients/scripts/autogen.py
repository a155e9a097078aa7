"""AutoGen: its client of OpenAI's interface, and an agent with a tool."""

from __future__ import annotations

import asyncio

from autogen_agentchat.agents import AssistantAgent
from autogen_core.models import ModelFamily, UserMessage
from autogen_core.tools import FunctionTool
from autogen_ext.models.openai import OpenAIChatCompletionClient

from tools.clients.shared import CALLS, KEY, SAID, SAYING, URL, Numbers, joined, numbers, run, same

INFO = {"vision": False, "function_calling": True, "json_output": True, "structured_output": True,
        "family": ModelFamily.UNKNOWN}  # fmt: skip
SPEAKING = {"extra_create_args": SAYING}
called = []


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
    made = client().create_stream([UserMessage(content="hello", source="user")], **SPEAKING)
    joined([part async for part in made if isinstance(part, str)])


async def an_agent():
    calls = client(extra_body=CALLS)
    await AssistantAgent("one", calls, tools=[add]).run(task="hello")
    same(len(called), 1)


run({
    "chat": lambda: same(ask(**SPEAKING), SAID), "stream": stream,
    "tool call": lambda: numbers(ask(tools=[ADD], tool_choice=ADD)[0].arguments),
    "tool call of an agent": an_agent,
    "structured output": lambda: numbers(ask(json_output=Numbers)),
}, ask)  # fmt: skip

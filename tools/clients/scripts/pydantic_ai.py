"""Pydantic AI: an agent with a tool, and with an output of each kind."""

from __future__ import annotations

import contextlib

import pydantic
from pydantic_ai import Agent, NativeOutput, ToolOutput, UsageLimits
from pydantic_ai.exceptions import UsageLimitExceeded
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from tools.clients import shared
from tools.clients.shared import KEY, LONG, SAID, URL

called = []


class Numbers(pydantic.BaseModel):
    a: int
    b: int


def agent(key=KEY, *, body=None, **more):
    model = OpenAIChatModel("demo", provider=OpenAIProvider(base_url=URL, api_key=key))
    return Agent(model, model_settings={"max_tokens": 200, "extra_body": body}, retries=0, **more)


saying = agent(body={"grammar": shared.GRAMMAR})


def tool_call():
    def add(a: int, b: int) -> int:
        """Add."""
        called.append((a, b))
        return 3

    calling = agent(body={"tool_choice": "required", "parallel_tool_calls": False}, tools=[add])
    with contextlib.suppress(UsageLimitExceeded):  # it has to call in its second answer too
        calling.run_sync("hello", usage_limits=UsageLimits(request_limit=2))
    shared.same(len(called), 2)


async def stream():
    async with saying.run_stream("hello") as made:
        shared.joined([part async for part in made.stream_text(delta=True, debounce_by=None)])


def structured_output():
    for kind in (NativeOutput(Numbers), ToolOutput(Numbers)):
        assert isinstance(agent(output_type=kind).run_sync("hello").output, Numbers)


shared.run({
    "chat": lambda: shared.same(saying.run_sync("hello").output, SAID), "stream": stream,
    "tool call and its output": tool_call, "structured output": structured_output,
    "wrong key": lambda: shared.wrong_key(lambda: agent("x").run_sync("hello")),
    "too long prompt": lambda: shared.too_long(lambda: agent().run_sync(LONG)),
})  # fmt: skip

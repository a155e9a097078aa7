"""Pydantic AI: an agent with a tool, and with an output of each kind."""

from __future__ import annotations

import contextlib

from pydantic_ai import Agent, NativeOutput, ToolOutput, UsageLimits
from pydantic_ai.exceptions import UsageLimitExceeded
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from tools.clients.shared import CALLS, KEY, SAID, SAYING, URL, Numbers, joined, run, same

called = []


def agent(key=KEY, *, extra_body=None, **more):
    model = OpenAIChatModel("demo", provider=OpenAIProvider(base_url=URL, api_key=key))
    return Agent(model, model_settings={"max_tokens": 200, "extra_body": extra_body}, retries=0, **more)


saying = agent(**SAYING)


def tool_call():
    def add(a: int, b: int) -> int:
        """Add."""
        called.append((a, b))
        return 3

    calling = agent(extra_body=CALLS, tools=[add])
    with contextlib.suppress(UsageLimitExceeded):  # it has to call in its second answer too
        calling.run_sync("hello", usage_limits=UsageLimits(request_limit=2))
    same(len(called), 2)


async def stream():
    async with saying.run_stream("hello") as made:
        joined([part async for part in made.stream_text(delta=True, debounce_by=None)])


def structured_output():
    for kind in (NativeOutput(Numbers), ToolOutput(Numbers)):
        assert isinstance(agent(output_type=kind).run_sync("hello").output, Numbers)


run({
    "chat": lambda: same(saying.run_sync("hello").output, SAID), "stream": stream,
    "tool call and its output": tool_call, "structured output": structured_output,
}, lambda key=KEY, text="hello": agent(key).run_sync(text))  # fmt: skip

"""smolagents: its model of OpenAI's interface, and an agent that calls a tool."""

from __future__ import annotations

import smolagents

from tools.clients.shared import KEY, SAID, SAYING, URL, joined, numbers, run, same

called = []


@smolagents.tool
def add(a: int, b: int) -> int:
    """Add.

    Args:
        a: a number
        b: a number
    """
    called.append((a, b))
    return 3


def model(key=KEY, **more):
    return smolagents.OpenAIModel("demo", api_base=URL, api_key=key, max_tokens=200, retry=False, **more)


def message(text="hello"):
    return [smolagents.ChatMessage(role="user", content=[{"type": "text", "text": text}])]


saying = model(**SAYING)


def tool_call():
    made = model().generate(message(), tools_to_call_from=[add])
    numbers(made.tool_calls[0].function.arguments)


def an_agent():
    agent = smolagents.ToolCallingAgent(
        tools=[add], model=model(parallel_tool_calls=False), max_steps=2, verbosity_level=0
    )
    agent.run("hello")
    steps = [each for each in agent.memory.steps if isinstance(each, smolagents.ActionStep)]
    assert all(each.tool_calls for each in steps[:1]), [each.error for each in steps]


run({
    "chat": lambda: same(saying.generate(message()).content, SAID),
    "stream": lambda: joined([each.content for each in saying.generate_stream(message())]),
    "tool call": tool_call, "tool calls of an agent": an_agent,
}, lambda key=KEY, text="hello": model(key).generate(message(text)))  # fmt: skip

"""OpenAI's Agents SDK: an agent with a tool, over Responses and over chats."""

from __future__ import annotations

import agents
import openai

from tools.clients.shared import CALLS, KEY, SAID, SAYING, URL, Numbers, joined, run, same

called = []


@agents.function_tool
def add(a: int, b: int) -> int:
    """Add."""
    called.append((a, b))
    return 3


def model(kind=agents.OpenAIResponsesModel, key=KEY):
    return kind("demo", openai.AsyncOpenAI(base_url=URL, api_key=key, max_retries=0))


def agent(one, *, tools=(), kind=None, **settings):
    chosen = agents.ModelSettings(max_tokens=200, **settings)
    return agents.Agent(name="one", model=one, tools=list(tools), output_type=kind, model_settings=chosen)


def checks_of(kind, name):
    async def answer():
        same((await agents.Runner.run(agent(model(kind), **SAYING), "hello")).final_output, SAID)

    async def stream():
        made = agents.Runner.run_streamed(agent(model(kind), **SAYING), "hello")
        raw = [each.data async for each in made.stream_events() if each.type == "raw_response_event"]
        joined([each.delta for each in raw if each.type == "response.output_text.delta"])

    async def loop():
        called.clear()
        one = agent(model(kind), tools=[add], **CALLS)
        made = await agents.Runner.run(one, "hello", max_turns=3)
        same((len(called), made.new_items[0].type), (1, "tool_call_item"))

    async def structured():
        made = await agents.Runner.run(agent(model(kind), kind=Numbers), "hello")
        assert isinstance(made.final_output, Numbers)

    return {f"{name}: answer": answer, f"{name}: stream": stream, f"{name}: tool call and its output": loop,
            f"{name}: structured output": structured}  # fmt: skip


run({
    **checks_of(agents.OpenAIResponsesModel, "Responses"),
    **checks_of(agents.OpenAIChatCompletionsModel, "chats"),
}, lambda key=KEY, text="hello": agents.Runner.run_sync(agent(model(key=key)), text))  # fmt: skip

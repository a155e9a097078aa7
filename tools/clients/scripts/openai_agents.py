"""OpenAI's Agents SDK: an agent with a tool, over Responses and over chats."""

from __future__ import annotations

import agents
import openai
from pydantic import BaseModel

from tools.clients import shared
from tools.clients.shared import KEY, LONG, SAID, URL

called = []


class Numbers(BaseModel):
    a: int
    b: int


@agents.function_tool
def add(a: int, b: int) -> int:
    """Add."""
    called.append((a, b))
    return 3


def model(kind=agents.OpenAIResponsesModel, key=KEY):
    return kind("demo", openai.AsyncOpenAI(base_url=URL, api_key=key, max_retries=0))


def agent(one, *, tools=(), kind=None, body=None, **settings):
    chosen = agents.ModelSettings(max_tokens=200, extra_body=body, **settings)
    return agents.Agent(name="one", model=one, tools=list(tools), output_type=kind, model_settings=chosen)


def checks_of(kind, name):
    saying = {"body": {"grammar": shared.GRAMMAR}}

    async def answer():
        shared.same((await agents.Runner.run(agent(model(kind), **saying), "hello")).final_output, SAID)

    async def stream():
        made = agents.Runner.run_streamed(agent(model(kind), **saying), "hello")
        raw = [each.data async for each in made.stream_events() if each.type == "raw_response_event"]
        shared.joined([each.delta for each in raw if each.type == "response.output_text.delta"])

    async def loop():
        called.clear()
        one = agent(model(kind), tools=[add], tool_choice="required", parallel_tool_calls=False)
        made = await agents.Runner.run(one, "hello", max_turns=3)
        shared.same((len(called), made.new_items[0].type), (1, "tool_call_item"))

    async def structured():
        made = await agents.Runner.run(agent(model(kind), kind=Numbers), "hello")
        assert isinstance(made.final_output, Numbers)

    return {f"{name}: answer": answer, f"{name}: stream": stream, f"{name}: tool call and its output": loop,
            f"{name}: structured output": structured}  # fmt: skip


def ask(text="hello", **more):
    return agents.Runner.run_sync(agent(model(**more)), text)


shared.run({
    **checks_of(agents.OpenAIResponsesModel, "Responses"),
    **checks_of(agents.OpenAIChatCompletionsModel, "chats"),
    "wrong key": lambda: shared.wrong_key(lambda: ask(key="x")),
    "too long prompt": lambda: shared.too_long(lambda: ask(LONG)),
})  # fmt: skip

"""CrewAI: its model class, and a crew of one agent with a typed answer."""

from __future__ import annotations

import crewai
from pydantic import BaseModel

from tools.clients import shared
from tools.clients.shared import KEY, LONG, SAID, TOOL, URL

CALLS = {"tool_choice": "required", "parallel_tool_calls": False}


class Numbers(BaseModel):
    a: int
    b: int


def llm(key=KEY, **more):
    return crewai.LLM(model="openai/demo", base_url=URL, api_key=key, max_tokens=200, max_retries=0, **more)


saying = {"additional_params": {"extra_body": {"grammar": shared.GRAMMAR}}}


def crew():
    agent = crewai.Agent(role="one", goal="x", backstory="x", llm=llm(**saying), max_iter=1, verbose=False)
    task = crewai.Task(description="hello", expected_output="x", agent=agent)
    shared.same(crewai.Crew(agents=[agent], tasks=[task], verbose=False).kickoff().raw, SAID)


def tool_call():
    calling = llm(additional_params={"extra_body": CALLS})
    made = calling.call("hello", tools=[TOOL])
    shared.numbers(made[0].function.arguments)


shared.run({
    "chat": lambda: shared.same(llm(**saying).call("hello"), SAID),
    "stream": lambda: shared.same(llm(stream=True, **saying).call("hello"), SAID),
    "tool call": tool_call, "a crew": crew,
    "structured output": lambda: shared.same(type(llm().call("hello", response_model=Numbers)), Numbers),
    "wrong key": lambda: shared.wrong_key(lambda: llm("x").call("hello")),
    "too long prompt": lambda: shared.too_long(lambda: llm().call(LONG)),
})  # fmt: skip

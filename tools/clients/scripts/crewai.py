"""CrewAI: its model class, and a crew of one agent with a typed answer."""

from __future__ import annotations

import crewai

from tools.clients.shared import CALLS, KEY, SAID, SAYING, TOOL, URL, Numbers, numbers, run, same


def llm(key=KEY, **more):
    return crewai.LLM(model="openai/demo", base_url=URL, api_key=key, max_tokens=200, max_retries=0, **more)


saying = {"additional_params": SAYING}


def crew():
    agent = crewai.Agent(role="one", goal="x", backstory="x", llm=llm(**saying), max_iter=1, verbose=False)
    task = crewai.Task(description="hello", expected_output="x", agent=agent)
    same(crewai.Crew(agents=[agent], tasks=[task], verbose=False).kickoff().raw, SAID)


def tool_call():
    calling = llm(additional_params={"extra_body": CALLS})
    made = calling.call("hello", tools=[TOOL])
    numbers(made[0].function.arguments)


run({
    "chat": lambda: same(llm(**saying).call("hello"), SAID),
    "stream": lambda: same(llm(stream=True, **saying).call("hello"), SAID),
    "tool call": tool_call, "a crew": crew,
    "structured output": lambda: same(type(llm().call("hello", response_model=Numbers)), Numbers),
}, lambda key=KEY, text="hello": llm(key).call(text))  # fmt: skip

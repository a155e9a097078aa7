"""Instructor: structured outputs by tools and by a schema, whole and in parts."""

from __future__ import annotations

import instructor
import openai

from tools.clients.shared import KEY, URL, USER, Numbers, run, said, same

MODES = {"tools": instructor.Mode.TOOLS, "schema": instructor.Mode.JSON_SCHEMA}


def ask(mode="schema", *, key=KEY, messages=USER, **more):
    client = instructor.from_openai(openai.OpenAI(base_url=URL, api_key=key, max_retries=0), mode=MODES[mode])
    given = {"model": "demo", "messages": messages, "response_model": Numbers, "max_tokens": 200, **more}
    return client.chat.completions.create(max_retries=0, **given)


def whole(mode):
    assert isinstance(ask(mode), Numbers)


def parts(mode):
    made = list(ask(mode, response_model=instructor.Partial[Numbers], stream=True))
    assert len(made) > 1
    same({type(made[-1].a), type(made[-1].b)}, {int})


run({
    "tool call": lambda: whole("tools"), "tool call in a stream": lambda: parts("tools"),
    "structured output": lambda: whole("schema"), "structured output in a stream": lambda: parts("schema"),
}, lambda key=KEY, text="hello": ask(key=key, messages=said(text)))  # fmt: skip

"""Instructor: structured outputs by tools and by a schema, whole and in parts."""

from __future__ import annotations

import instructor
import openai
import pydantic

from tools.clients import shared
from tools.clients.shared import KEY, LONG, URL, USER

MODES = {"tools": instructor.Mode.TOOLS, "schema": instructor.Mode.JSON_SCHEMA}


class Numbers(pydantic.BaseModel):
    a: int
    b: int


def ask(mode="schema", *, key=KEY, messages=USER, **more):
    client = instructor.from_openai(openai.OpenAI(base_url=URL, api_key=key, max_retries=0), mode=MODES[mode])
    given = {"model": "demo", "messages": messages, "response_model": Numbers, "max_tokens": 200, **more}
    return client.chat.completions.create(max_retries=0, **given)


def whole(mode):
    assert isinstance(ask(mode), Numbers)


def parts(mode):
    made = list(ask(mode, response_model=instructor.Partial[Numbers], stream=True))
    assert len(made) > 1
    shared.same({type(made[-1].a), type(made[-1].b)}, {int})


shared.run({
    "tool call": lambda: whole("tools"), "tool call in a stream": lambda: parts("tools"),
    "structured output": lambda: whole("schema"), "structured output in a stream": lambda: parts("schema"),
    "wrong key": lambda: shared.wrong_key(lambda: ask(key="x")),
    "too long prompt": lambda: shared.too_long(lambda: ask(messages=[{"role": "user", "content": LONG}])),
})  # fmt: skip

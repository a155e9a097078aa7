"""DSPy: its model class, and a predictor with typed fields. Its schema is given, as DSPy asks for none."""

from __future__ import annotations

import dspy

from tools.clients import shared
from tools.clients.shared import KEY, LONG, NUMBERS, SAID, URL

FORM = {"type": "json_schema", "json_schema": {"name": "numbers", "schema": NUMBERS}}


def lm(key=KEY, **more):
    given = {"max_tokens": 200, "num_retries": 0, "cache": False, **more}
    return dspy.LM("openai/demo", api_base=URL, api_key=key, **given)


def structured_output():
    with dspy.context(lm=lm(response_format=FORM), adapter=dspy.JSONAdapter()):
        made = dspy.Predict("question: str -> a: int, b: int")(question="hello")
    shared.numbers({"a": made.a, "b": made.b})


def chat():
    made = lm(extra_body={"grammar": shared.GRAMMAR})("hello")
    shared.same([each if isinstance(each, str) else each["text"] for each in made], [SAID])


shared.run({
    "chat": chat, "structured output": structured_output,
    "wrong key": lambda: shared.wrong_key(lambda: lm("x")("hello")),
    "too long prompt": lambda: shared.too_long(lambda: lm()(LONG)),
})  # fmt: skip

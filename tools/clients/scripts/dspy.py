"""DSPy: its model class, and a predictor with typed fields. Its schema is given, as DSPy asks for none."""

from __future__ import annotations

import dspy

from tools.clients.shared import FORM, KEY, SAID, SAYING, URL, numbers, run, same


def lm(key=KEY, **more):
    given = {"max_tokens": 200, "num_retries": 0, "cache": False, **more}
    return dspy.LM("openai/demo", api_base=URL, api_key=key, **given)


def structured_output():
    with dspy.context(lm=lm(response_format=FORM), adapter=dspy.JSONAdapter()):
        made = dspy.Predict("question: str -> a: int, b: int")(question="hello")
    numbers({"a": made.a, "b": made.b})


def chat():
    made = lm(**SAYING)("hello")
    same([each if isinstance(each, str) else each["text"] for each in made], [SAID])


run({
    "chat": chat, "structured output": structured_output,
}, lambda key=KEY, text="hello": lm(key)(text))  # fmt: skip

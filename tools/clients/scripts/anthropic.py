"""Anthropic's client: Messages."""

from __future__ import annotations

import anthropic

from tools.clients.shared import ADDRESS, KEY, NUMBERS, SAID, SAYING, USER, joined, numbers, run, said, same

ADD = {"name": "add", "description": "Adds.", "input_schema": NUMBERS}
client = anthropic.Anthropic(base_url=ADDRESS, api_key=KEY, max_retries=0)
CHOICE = {"type": "tool", "name": "add", "disable_parallel_tool_use": True}


def create(messages=USER, one=client, **more):
    return one.messages.create(model="demo", messages=messages, max_tokens=200, **more)


def stream():
    with client.messages.stream(model="demo", messages=USER, max_tokens=200, **SAYING) as made:
        joined(list(made.text_stream))
        same(made.get_final_message().stop_reason, "end_turn")


def tool_call():
    made = create(tools=[ADD], tool_choice=CHOICE)
    (call,) = made.content
    same((made.stop_reason, call.type), ("tool_use", "tool_use"))
    numbers(call.input)
    result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "3"}]}
    told = [*USER, {"role": "assistant", "content": made.content}, result]
    same(create(told, **SAYING).content[0].text, SAID)


def tool_call_in_a_stream():
    more = {"tools": [ADD], "tool_choice": CHOICE}
    with client.messages.stream(model="demo", messages=USER, max_tokens=200, **more) as made:
        (call,) = made.get_final_message().content
    numbers(call.input)


def structured_output():
    form = {"format": {"type": "json_schema", "schema": NUMBERS}}
    numbers(create(output_config=form).content[0].text)


def count():
    assert client.messages.count_tokens(model="demo", messages=USER).input_tokens > 1


run({
    "message": lambda: same(create(**SAYING).content[0].text, SAID), "stream": stream,
    "tool call and its result": tool_call, "tool call in a stream": tool_call_in_a_stream,
    "structured output": structured_output,
    "count of tokens": count,
    "models": lambda: same([each.id for each in client.models.list()], ["demo"]),
}, lambda key=KEY, text="hello": create(said(text), client.with_options(api_key=key)))  # fmt: skip

"""LiteLLM: chats by OpenAI's interface, and Anthropic's."""

from __future__ import annotations

import litellm

from tools.clients import shared
from tools.clients.shared import ADDRESS, CHOICE, FORM, KEY, SAID, SAYING, TOOL, URL, USER

OPENAI = {"model": "openai/demo", "api_base": URL}


def ask(*, key=KEY, messages=USER, **more):
    given = {**OPENAI, "api_key": key, "messages": messages, "max_tokens": 200, **more}
    return litellm.completion(**given)


def tool_call():
    made = ask(tools=[TOOL], tool_choice=CHOICE).choices[0].message
    (call,) = made.tool_calls
    shared.numbers(call.function.arguments)
    result = {"role": "tool", "tool_call_id": call.id, "content": "3"}
    shared.same(ask(messages=[*USER, made.model_dump(), result], **SAYING).choices[0].message.content, SAID)


def tool_call_in_a_stream():
    made = litellm.stream_chunk_builder(list(ask(stream=True, tools=[TOOL], tool_choice=CHOICE)))
    shared.numbers(made.choices[0].message.tool_calls[0].function.arguments)


def anthropics():
    made = ask(model="anthropic/demo", api_base=ADDRESS, tools=[TOOL], tool_choice=CHOICE)
    shared.numbers(made.choices[0].message.tool_calls[0].function.arguments)


def embeddings():
    given = {"model": "openai/demo", "api_base": URL, "api_key": KEY, "encoding_format": "float"}
    made = litellm.embedding(input=["a", "b c"], **given)
    shared.same(len({len(each["embedding"]) for each in made.data}), 1)


shared.run({
    "chat": lambda: shared.same(ask(**SAYING).choices[0].message.content, SAID),
    "stream": lambda: shared.joined([each.choices[0].delta.content for each in ask(stream=True, **SAYING)]),
    "tool call and its output": tool_call, "tool call in a stream": tool_call_in_a_stream,
    "structured output": lambda: shared.numbers(ask(response_format=FORM).choices[0].message.content),
    "tool call by Anthropic's interface": anthropics,
    "embeddings": embeddings,
}, lambda key=KEY, text="hello": ask(key=key, messages=shared.said(text)))  # fmt: skip

"""Haystack: chats, tools, and embeddings."""

from __future__ import annotations

from haystack.components.embedders import OpenAITextEmbedder
from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.tools import Tool
from haystack.utils import Secret

from tools.clients.shared import CALLS, FORM, KEY, NUMBERS, SAID, SAYING, URL, joined, numbers, run, same

ADD = Tool(name="add", description="Adds.", parameters=NUMBERS, function=lambda a, b: a + b)


def ask(*, key=KEY, text="hello", more=None, messages=None, **given):
    chats = OpenAIChatGenerator(
        api_key=Secret.from_token(key), model="demo", api_base_url=URL, max_retries=0,
        generation_kwargs={"max_tokens": 200, **(more or {})}, **given,
    )  # fmt: skip
    return chats.run(messages or [ChatMessage.from_user(text)])["replies"][0]


def stream():
    parts = []
    ask(more=SAYING, streaming_callback=lambda part: parts.append(part.content))
    joined(parts)


def tool_call():
    made = ask(tools=[ADD], more=CALLS)
    (call,) = made.tool_calls
    numbers(call.arguments)
    told = [ChatMessage.from_user("hello"), made, ChatMessage.from_tool("3", origin=call)]
    same(ask(messages=told, more=SAYING).text, SAID)


def tool_call_in_a_stream():
    made = ask(tools=[ADD], more=CALLS, streaming_callback=lambda part: None)
    numbers(made.tool_calls[0].arguments)


def embeddings():
    made = OpenAITextEmbedder(api_key=Secret.from_token(KEY), model="demo", api_base_url=URL).run("a")
    assert len(made["embedding"]) > 8


run({
    "chat": lambda: same(ask(more=SAYING).text, SAID), "stream": stream,
    "tool call and its output": tool_call, "tool call in a stream": tool_call_in_a_stream,
    "structured output": lambda: numbers(ask(more={"response_format": FORM}).text),
    "embeddings": embeddings,
}, ask)  # fmt: skip

"""LangChain's ChatOpenAI and OpenAIEmbeddings."""

from __future__ import annotations

from langchain_core.messages import HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI, OpenAIEmbeddings

from tools.clients import shared
from tools.clients.shared import KEY, LONG, NUMBERS, SAID, TOOL, URL


def chat(key=KEY, **more):
    return ChatOpenAI(model="demo", base_url=URL, api_key=key, max_retries=0, max_tokens=200, **more)


saying = chat(extra_body={"grammar": shared.GRAMMAR})
responding = chat(use_responses_api=True, extra_body={"grammar": shared.GRAMMAR})
calling = chat().bind_tools([TOOL], tool_choice="add")


def tool_call():
    made = calling.invoke("hello")
    (call,) = made.tool_calls
    shared.numbers(call["args"])
    result = ToolMessage("3", tool_call_id=call["id"])
    shared.same(saying.invoke([HumanMessage("hello"), made, result]).content, SAID)


def tool_call_in_a_stream():
    whole = None
    for part in calling.stream("hello"):
        whole = part if whole is None else whole + part
    shared.numbers(whole.tool_calls[0]["args"])


def structured_output():
    schema = {"title": "Numbers", "description": "Two.", **NUMBERS}
    for method in ("json_schema", "function_calling"):
        shared.numbers(chat().with_structured_output(schema, method=method).invoke("hello"))


def embeddings():
    made = OpenAIEmbeddings(model="demo", base_url=URL, api_key=KEY, check_embedding_ctx_length=False)
    shared.same(len({len(each) for each in made.embed_documents(["a", "b c"])}), 1)


shared.run({
    "chat": lambda: shared.same(saying.invoke("hello").content, SAID),
    "stream": lambda: shared.joined([each.content for each in saying.stream("hello")]),
    "stream of a response": lambda: shared.joined([each.text for each in responding.stream("hello")]),
    "tool call and its output": tool_call, "tool call in a stream": tool_call_in_a_stream,
    "structured output": structured_output, "embeddings": embeddings,
    "wrong key": lambda: shared.wrong_key(lambda: chat("x").invoke("hello")),
    "too long prompt": lambda: shared.too_long(lambda: chat().invoke(LONG)),
})  # fmt: skip

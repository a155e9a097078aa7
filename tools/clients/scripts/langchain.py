"""LangChain's ChatOpenAI and OpenAIEmbeddings."""

from __future__ import annotations

from langchain_core.messages import HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI, OpenAIEmbeddings

from tools.clients.shared import KEY, NUMBERS, SAID, SAYING, TOOL, URL, joined, numbers, run, same


def chat(key=KEY, **more):
    return ChatOpenAI(model="demo", base_url=URL, api_key=key, max_retries=0, max_tokens=200, **more)


saying = chat(**SAYING)
responding = chat(use_responses_api=True, **SAYING)
calling = chat().bind_tools([TOOL], tool_choice="add")


def tool_call():
    made = calling.invoke("hello")
    (call,) = made.tool_calls
    numbers(call["args"])
    result = ToolMessage("3", tool_call_id=call["id"])
    same(saying.invoke([HumanMessage("hello"), made, result]).content, SAID)


def tool_call_in_a_stream():
    whole = None
    for part in calling.stream("hello"):
        whole = part if whole is None else whole + part
    numbers(whole.tool_calls[0]["args"])


def structured_output():
    schema = {"title": "Numbers", "description": "Two.", **NUMBERS}
    for method in ("json_schema", "function_calling"):
        numbers(chat().with_structured_output(schema, method=method).invoke("hello"))


def embeddings():
    made = OpenAIEmbeddings(model="demo", base_url=URL, api_key=KEY, check_embedding_ctx_length=False)
    same(len({len(each) for each in made.embed_documents(["a", "b c"])}), 1)


run({
    "chat": lambda: same(saying.invoke("hello").content, SAID),
    "stream": lambda: joined([each.content for each in saying.stream("hello")]),
    "stream of a response": lambda: joined([each.text for each in responding.stream("hello")]),
    "tool call and its output": tool_call, "tool call in a stream": tool_call_in_a_stream,
    "structured output": structured_output, "embeddings": embeddings,
}, lambda key=KEY, text="hello": chat(key).invoke(text))  # fmt: skip

"""OpenAI's client: completions, chats, Responses, embeddings."""

from __future__ import annotations

import openai

from tools.clients import shared
from tools.clients.shared import CALLS, CHOICE, KEY, SAID, SAYING, TOOL, URL, USER, Numbers

FUNCTION = {"type": "function", "strict": True, **TOOL["function"]}
client = openai.OpenAI(base_url=URL, api_key=KEY, max_retries=0)
chats, responses = client.chat.completions, client.responses


def chat(messages=USER, one=client, **more):
    made = one.chat.completions.create(model="demo", messages=messages, max_tokens=200, **more)
    return made.choices[0].message


def completion():
    shared.same(client.completions.create(model="demo", prompt="x", **SAYING).choices[0].text, SAID)


def completion_stream():
    made = client.completions.create(model="demo", prompt="x", stream=True, **SAYING)
    shared.joined([each.choices[0].text for each in made if each.choices])


def chat_stream():
    more = {"stream_options": {"include_usage": True}, **SAYING}
    chunks = list(chats.create(model="demo", messages=USER, stream=True, **more))
    shared.joined([each.choices[0].delta.content for each in chunks if each.choices])
    assert chunks[-1].usage.completion_tokens > 1


def tool_call():
    (call,) = chat(tools=[TOOL], tool_choice=CHOICE).tool_calls
    shared.numbers(call.function.arguments)


def tool_call_in_a_stream():
    tools = [openai.pydantic_function_tool(Numbers)]
    with chats.stream(model="demo", messages=USER, tools=tools, **CALLS) as stream:
        (call,) = stream.get_final_completion().choices[0].message.tool_calls
    assert isinstance(call.function.parsed_arguments, Numbers)


def structured_output():
    made = chats.parse(model="demo", messages=USER, response_format=Numbers, max_tokens=200)
    assert isinstance(made.choices[0].message.parsed, Numbers)


def response():
    shared.same(responses.create(model="demo", input="hello", **SAYING).output_text, SAID)


def response_stream():
    with responses.stream(model="demo", input="hello", **SAYING) as stream:
        shared.joined([each.delta for each in stream if each.type == "response.output_text.delta"])
        shared.same(stream.get_final_response().output_text, SAID)


def response_tool_call():
    (call,) = responses.create(model="demo", input="hello", tools=[FUNCTION], **CALLS).output
    shared.numbers(call.arguments)
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "3"}
    made = responses.create(model="demo", input=[*USER, call.model_dump(), output], **SAYING)
    shared.same(made.output_text, SAID)


def response_structured():
    made = responses.parse(model="demo", input="hello", text_format=Numbers, max_output_tokens=200)
    assert isinstance(made.output_parsed, Numbers)


def embeddings():
    made = client.embeddings.create(model="demo", input=["a", "b c"])
    shared.same(len({len(each.embedding) for each in made.data}), 1)


shared.run({
    "completion": completion, "stream of a completion": completion_stream,
    "chat": lambda: shared.same(chat(**SAYING).content, SAID), "stream": chat_stream,
    "tool call": tool_call, "tool call in a stream": tool_call_in_a_stream,
    "structured output": structured_output, "response": response, "stream of a response": response_stream,
    "tool call of a response and its output": response_tool_call,
    "structured output of a response": response_structured, "embeddings": embeddings,
    "models": lambda: shared.same([each.id for each in client.models.list()], ["demo"]),
}, lambda key=KEY, text="hello": chat(shared.said(text), client.with_options(api_key=key)))  # fmt: skip

"""LlamaIndex's class for servers like OpenAI's."""

from __future__ import annotations

from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike

from tools.clients.shared import KEY, SAID, SAYING, URL, Numbers, joined, numbers, run, same

HELLO = [ChatMessage(role="user", content="hello")]


def add(a: int, b: int) -> int:
    """Add."""
    return a + b


def llm(key=KEY, **more):
    given = {"is_chat_model": True, "is_function_calling_model": True, "context_window": 8192, **more}
    return OpenAILike(model="demo", api_base=URL, api_key=key, max_retries=0, max_tokens=200, **given)


saying = llm(additional_kwargs=SAYING)
completing = llm(additional_kwargs=SAYING, is_chat_model=False)


def tool_call():
    made = llm().chat_with_tools([FunctionTool.from_defaults(add)], chat_history=HELLO, tool_required=True)
    (call,) = llm().get_tool_calls_from_response(made)
    numbers(call.tool_kwargs)


def structured_output():
    assert isinstance(llm().as_structured_llm(Numbers).chat(HELLO).raw, Numbers)


run({
    "completion": lambda: same(completing.complete("x").text, SAID),
    "chat": lambda: same(saying.chat(HELLO).message.content, SAID),
    "stream": lambda: joined([each.delta for each in saying.stream_chat(HELLO)]),
    "tool call": tool_call, "structured output": structured_output,
}, lambda key=KEY, text="hello": llm(key).chat([ChatMessage(role="user", content=text)]))  # fmt: skip

"""`chat_format="common"` gives chats the format of the model's family, with and without the split."""

from __future__ import annotations

import json
from contextlib import closing
from typing import Any

import llama_cpp
import pytest

from spac.errors import InputError
from spac.llama_cpp_python.llama import Llama
from tests.chat.templates import ADD, THINKING, THINKING_TOKENS, with_template
from tests.llama_cpp_python.conftest import SMALL

USER = [{"role": "user", "content": "hello"}]
CALLED = '<think>x</think><tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 22}}\n</tool_call>'


@pytest.fixture(scope="module")
def path(tiny_model, tmp_path_factory):
    source = tiny_model("qwen3moe", n_vocab=288)
    return with_template(source, tmp_path_factory.mktemp("chat") / "m.gguf", THINKING, THINKING_TOKENS)


@pytest.fixture(scope="module", params=["simulated", "cpu"])
def llm(path, request):
    options: dict[str, Any] = {**SMALL, "n_ctx": 512, "device": request.param}
    llm = Llama(str(path), chat_format="common", **options)
    assert (llm.engine is None) == (request.param == "cpu")
    yield llm
    llm.close()


def saying(text: str) -> dict[str, Any]:
    """Return arguments that make the model generate this text."""
    grammar = llama_cpp.LlamaGrammar.from_string(f"root ::= {json.dumps(text)}", verbose=False)
    return {"grammar": grammar, "temperature": 0.0, "max_tokens": 200, "repeat_penalty": 1.0}


def test_reasoning_and_content(llm):
    made = llm.create_chat_completion(USER, **saying("<think>\nhmm\n</think>\n\nhi"))
    message = made["choices"][0]["message"]
    assert (message["reasoning_content"].strip(), message["content"]) == ("hmm", "hi")
    assert made["usage"]["completion_tokens"] > 0


def both_ways(llm: Llama, *messages: Any, **asked: Any) -> tuple[dict, dict]:
    """Return the choice of a whole answer, and one with the joined texts of a stream."""
    whole = llm.create_chat_completion([*messages] or USER, **asked)["choices"][0]
    choices = [
        each["choices"][0] for each in llm.create_chat_completion([*messages] or USER, stream=True, **asked)
    ]
    deltas = [choice["delta"] for choice in choices]
    joined: dict[str, Any] = {
        name: "".join(delta.get(name) or "" for delta in deltas) for name in ("content", "reasoning_content")
    }
    joined["tool_calls"] = [part for delta in deltas for part in delta.get("tool_calls", ())]
    return whole, {"message": joined, "finish_reason": choices[-1]["finish_reason"]}


def test_tool_calls_at_once_and_streamed(llm):
    whole, streamed = both_ways(llm, tools=[ADD], **saying(CALLED))
    for each in (whole, streamed):
        arguments = "".join(part["function"]["arguments"] for part in each["message"]["tool_calls"])
        assert json.loads(arguments) == {"a": 1, "b": 22}
        assert each["finish_reason"] == "tool_calls"


STOPPED = {
    "in the reasoning and in the answer": ("<think>\nhmm END\n</think>\n\nhi END there", "hmm END", "hi "),
    "in the reasoning alone": ("<think>\nhmm END\n</think>\n\nhi there", "hmm END", "hi there"),
    "in the space behind the reasoning": ("<think>\nhmm\n</think>ENDhi there", "hmm", ""),
    "without reasoning": ("hi END there", "", "hi "),
}


@pytest.mark.parametrize(("text", "reasoning", "content"), STOPPED.values(), ids=STOPPED)
@pytest.mark.parametrize("logprobs", [None, True])
def test_stop_strings_count_in_the_answer(llm, text, reasoning, content, logprobs):
    asked: dict[str, Any] = {"logprobs": logprobs, **saying(text)}
    whole = llm.create_chat_completion(USER, **asked)
    made = llm.create_chat_completion(USER, stop=["END", ""], **asked)
    n_made, n_whole = (each["usage"]["completion_tokens"] for each in (made, whole))
    assert (n_made < n_whole) == (content != "hi there")
    assert n_made > len(llm.tokenize(f"{reasoning}{content}".encode(), add_bos=False)) / 2
    assert bool(made["choices"][0]["logprobs"]) == bool(logprobs)
    for each in both_ways(llm, stop="END", **asked):
        message = each["message"]
        assert (message.get("reasoning_content", "").strip(), message["content"]) == (reasoning, content)
        assert each["finish_reason"] == "stop"


def test_a_stop_string_that_does_not_come(llm):
    """Text that may begin a stop string is held back, and comes at the end or before a call of a tool."""
    for text in ("hi EN", CALLED.replace("</think>", "</think>EN")):
        for each in both_ways(llm, tools=[ADD], stop="END", **saying(text)):
            assert each["message"]["content"].endswith("EN")
            assert bool(each["message"].get("tool_calls")) == (text != "hi EN")


def test_a_schema_where_llama_cpps_own_loop_generates(path):
    """llama_cpp's loop cannot follow the chat's grammar. It gets the schema's grammar."""
    schema = {"type": "object", "properties": {}, "additionalProperties": False}
    with closing(Llama(str(path), chat_format="common", device="cpu", **SMALL)) as llm:
        for form in (
            {"type": "json_object", "schema": schema},
            {"type": "json_schema", "json_schema": {"schema": schema}},
        ):
            made = llm.create_chat_completion(USER, response_format=form, temperature=0.0, max_tokens=40)
            assert set(made["choices"][0]["message"]["content"]) <= set("{} \n\t")


def test_a_stream_that_is_left_leaves_nothing_behind(llm):
    control = llm.tokenize(b"<think>", add_bos=False, special=True)
    stream = llm.create_chat_completion(USER, stream=True, **saying("<think>\nhmm\n</think>\n\nhi"))
    next(stream)
    next(stream)
    assert llm.detokenize(control) == b"<think>"
    stream.close()
    assert llm.detokenize(control) == b""


def test_an_answer_that_has_begun(llm):
    """The answer holds only the new text. The reasoning may have begun too."""
    for begun, said, reasoning, content in (
        ({"content": "Well, "}, "met", "", "met"),
        ({"content": "", "reasoning_content": "Hmm"}, ", so\n</think>\n\nhi", ", so", "hi"),
    ):
        for each in both_ways(llm, *USER, {"role": "assistant", **begun}, **saying(said)):
            message = each["message"]
            assert message["content"] == content
            assert message.get("reasoning_content", "").strip() == reasoning
    with pytest.raises(InputError, match="only one can be continued"):
        llm.create_chat_completion([*USER, *[{"role": "assistant", "content": "a"}] * 2])


def test_what_is_refused(llm):
    odd = {"type": "function", "function": {"name": "f", "parameters": {"type": "odd"}}}
    for words, asked in (
        ("nope", {"tools": [ADD], "tool_choice": {"type": "function", "function": {"name": "nope"}}}),
        ("there are no tools", {"tool_choice": "required"}),
        ("'xml' is not text, json_object or json_schema", {"response_format": {"type": "xml"}}),
        ("the schema of json_schema is missing", {"response_format": {"type": "json_schema"}}),
        ("a JSON schema cannot be used: ", {"tools": [odd], "tool_choice": "required"}),
        ("refuses these messages", {"messages": [{"role": "user", "content": 3}]}),
    ):
        with pytest.raises(InputError, match=words):
            llm.create_chat_completion(**{"messages": USER, **asked})


def test_a_model_without_a_template_is_told_of_tools(opened):
    llm = opened(chat_format="common", n_ctx=512)
    answer = llm.create_chat_completion(
        USER, tools=[ADD], tool_choice="required", max_tokens=200, temperature=0
    )
    assert answer["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "add"


def test_other_formats_are_llama_cpps(opened, path):
    assert opened(path).chat_handler is None
    assert opened(path, chat_format="chatml").chat_handler is None

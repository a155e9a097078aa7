"""`chat_format="common"` gives chats the format of the model's family, with and without the split."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import llama_cpp
import pytest

from spac.errors import InputError
from spac.llama_cpp_python.llama import Llama
from tests.chat.templates import ADD, THINKING, THINKING_TOKENS, with_template
from tests.conftest import TinyModel
from tests.llama_cpp_python.conftest import SMALL, Open

USER = [{"role": "user", "content": "hello"}]
CALLED = '<think>x</think><tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 22}}\n</tool_call>'


@pytest.fixture(scope="module")
def path(tiny_model: TinyModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = tiny_model("qwen3moe", n_vocab=288)
    return with_template(source, tmp_path_factory.mktemp("chat") / "m.gguf", THINKING, THINKING_TOKENS)


@pytest.fixture(scope="module", params=["simulated", "cpu"])
def llm(path: Path, request: pytest.FixtureRequest) -> Iterator[Llama]:
    options: dict[str, Any] = {**SMALL, "n_ctx": 512, "device": request.param}
    llm = Llama(str(path), chat_format="common", **options)
    assert (llm.engine is None) == (request.param == "cpu")
    yield llm
    llm.close()


def saying(text: str) -> dict[str, Any]:
    """Return arguments that make the model generate this text."""
    grammar = llama_cpp.LlamaGrammar.from_string(f"root ::= {json.dumps(text)}", verbose=False)
    return {"grammar": grammar, "temperature": 0.0, "max_tokens": 200, "repeat_penalty": 1.0}


def test_reasoning_and_content(llm: Llama) -> None:
    made = llm.create_chat_completion(USER, **saying("<think>\nhmm\n</think>\n\nhi"))
    message = made["choices"][0]["message"]
    assert (message["reasoning_content"].strip(), message["content"]) == ("hmm", "hi")
    assert made["usage"]["completion_tokens"] > 0


def test_tool_calls_at_once_and_streamed(llm: Llama) -> None:
    choice = llm.create_chat_completion(USER, tools=[ADD], **saying(CALLED))["choices"][0]
    [call] = choice["message"]["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"a": 1, "b": 22}
    assert choice["finish_reason"] == "tool_calls"
    chunks = list(llm.create_chat_completion(USER, tools=[ADD], stream=True, **saying(CALLED)))
    parts = [part for c in chunks for part in c["choices"][0]["delta"].get("tool_calls", ())]
    assert json.loads("".join(part["function"]["arguments"] for part in parts)) == {"a": 1, "b": 22}


STOPPED = {
    "in the reasoning and in the answer": ("<think>\nhmm END\n</think>\n\nhi END there", "hmm END", "hi "),
    "in the reasoning alone": ("<think>\nhmm END\n</think>\n\nhi there", "hmm END", "hi there"),
    "without reasoning": ("hi END there", "", "hi "),
}


@pytest.mark.parametrize(("text", "reasoning", "content"), STOPPED.values(), ids=STOPPED)
@pytest.mark.parametrize("logprobs", [None, True])
def test_stop_strings_count_in_the_answer(
    llm: Llama, text: str, reasoning: str, content: str, logprobs: bool | None
) -> None:
    asked: dict[str, Any] = {"logprobs": logprobs, **saying(text)}
    whole = llm.create_chat_completion(USER, **asked)
    made = llm.create_chat_completion(USER, stop=["END", ""], **asked)
    message = made["choices"][0]["message"]
    assert (message.get("reasoning_content", "").strip(), message["content"]) == (reasoning, content)
    n_made, n_whole = (each["usage"]["completion_tokens"] for each in (made, whole))
    assert (n_made < n_whole) == (content == "hi ")
    assert n_made > len(llm.tokenize(f"{reasoning}{content}".encode(), add_bos=False)) / 2
    assert made["choices"][0]["finish_reason"] == whole["choices"][0]["finish_reason"] == "stop"
    assert bool(made["choices"][0]["logprobs"]) == bool(logprobs)
    chunks = list(llm.create_chat_completion(USER, stop="END", stream=True, **asked))
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert "".join(delta.get("content") or "" for delta in deltas) == content
    assert "".join(delta.get("reasoning_content") or "" for delta in deltas).strip() == reasoning
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"


def test_a_stop_string_in_the_space_behind_the_reasoning(llm: Llama) -> None:
    said = saying("<think>\nhmm\n</think>\n\nhi\nthere")
    message = llm.create_chat_completion(USER, stop="\n", **said)["choices"][0]["message"]
    assert (message["reasoning_content"].strip(), message["content"]) == ("hmm", "hi")


def test_a_stop_string_that_does_not_come(llm: Llama) -> None:
    """Text that may begin a stop string is held back, and comes at the end or before a call of a tool."""
    for text in ("hi EN", CALLED.replace("</think>", "</think>EN")):
        for stream in (False, True):
            made = llm.create_chat_completion(USER, tools=[ADD], stop="END", stream=stream, **saying(text))
            parts = [c["choices"][0]["delta"] for c in made] if stream else [made["choices"][0]["message"]]
            assert "".join(part.get("content") or "" for part in parts).endswith("EN")
            assert any("tool_calls" in part for part in parts) == (text != "hi EN")


def test_a_schema_where_llama_cpps_own_loop_generates(path: Path) -> None:
    """llama_cpp's loop cannot follow the chat's grammar. It gets the schema's grammar."""
    schema = {"type": "object", "properties": {}, "additionalProperties": False}
    with closing(Llama(str(path), chat_format="common", device="cpu", **SMALL)) as llm:
        for form in (
            {"type": "json_object", "schema": schema},
            {"type": "json_schema", "json_schema": {"schema": schema}},
        ):
            made = llm.create_chat_completion(USER, response_format=form, temperature=0.0, max_tokens=40)
            assert set(made["choices"][0]["message"]["content"]) <= set("{} \n\t")


def test_a_stream_that_is_left_leaves_nothing_behind(llm: Llama) -> None:
    control = llm.tokenize(b"<think>", add_bos=False, special=True)
    stream = llm.create_chat_completion(USER, stream=True, **saying("<think>\nhmm\n</think>\n\nhi"))
    next(stream)
    next(stream)
    assert llm.detokenize(control) == b"<think>"
    stream.close()
    assert llm.detokenize(control) == b""


def test_an_answer_that_has_begun(llm: Llama) -> None:
    """The answer holds only the new text. The reasoning may have begun too."""
    for begun, said, content in (
        ({"content": "Well, "}, "met", "met"),
        ({"content": "", "reasoning_content": "Hmm"}, ", so\n</think>\n\nhi", "hi"),
    ):
        messages = [*USER, {"role": "assistant", **begun}]
        message = llm.create_chat_completion(messages, **saying(said))["choices"][0]["message"]
        assert message["content"] == content
        assert message.get("reasoning_content", "").strip() == ("" if content == said else ", so")
        chunks = list(llm.create_chat_completion(messages, stream=True, **saying(said)))
        deltas = [chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks]
        assert "".join(deltas) == content
    two = [*USER, *[{"role": "assistant", "content": "a"}] * 2]
    with pytest.raises(InputError, match="only one can be continued"):
        llm.create_chat_completion(two)


def test_what_is_refused(llm: Llama) -> None:
    choice = {"type": "function", "function": {"name": "nope"}}
    with pytest.raises(InputError, match="nope"):
        llm.create_chat_completion(USER, tools=[ADD], tool_choice=choice)
    with pytest.raises(InputError, match="there are no tools"):
        llm.create_chat_completion(USER, tool_choice="required")
    with pytest.raises(InputError, match="'xml' is not text, json_object or json_schema"):
        llm.create_chat_completion(USER, response_format={"type": "xml"})
    with pytest.raises(InputError, match="the schema of json_schema is missing"):
        llm.create_chat_completion(USER, response_format={"type": "json_schema"})
    odd = {"type": "function", "function": {"name": "f", "parameters": {"type": "odd"}}}
    with pytest.raises(InputError, match="a JSON schema cannot be used: "):
        llm.create_chat_completion(USER, tools=[odd], tool_choice="required")
    with pytest.raises(InputError, match="refuses these messages"):
        llm.create_chat_completion([{"role": "user", "content": 3}])


def test_a_model_without_a_template_is_told_of_tools(opened: Open) -> None:
    llm = opened(chat_format="common", n_ctx=512)
    answer = llm.create_chat_completion(
        USER, tools=[ADD], tool_choice="required", max_tokens=200, temperature=0
    )
    assert answer["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "add"


def test_other_formats_are_llama_cpps(opened: Open, path: Path) -> None:
    assert opened(path).chat_handler is None
    assert opened(path, chat_format="chatml").chat_handler is None

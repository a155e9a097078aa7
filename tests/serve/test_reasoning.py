"""Stop strings count behind the reasoning, and a budget ends it whatever else is asked."""

from __future__ import annotations

import json

import pytest

from tests.chat.templates import THINKING, THINKING_TOKENS, with_template
from tests.cli.conftest import ONE_THREAD
from tests.serve.conftest import Server

USER = [{"role": "user", "content": "hello"}]
REASONED = "<think>one\n\ntwo</think>\n\nthree\n\nfour"
NUMBERS = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "s", "schema": NUMBERS}}
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": NUMBERS}}]


@pytest.fixture(scope="module")
def server(tiny_model, tmp_path_factory):
    """Yield a model whose tags of reasoning are tokens."""
    folder = tmp_path_factory.mktemp("reasoning")
    source = tiny_model("qwen3moe", n_vocab=288)
    model = with_template(source, folder / "model.gguf", THINKING, THINKING_TOKENS)
    options = ("--target", str(model), "--ctx", "2048", "--draft-length", "0")
    with Server(folder, *options, fixed=ONE_THREAD) as server:
        yield server


CHATS = "/v1/chat/completions"
FEW = {"temperature": 0, "max_tokens": 200}


def tokens(server: Server, text: str) -> list[int]:
    return server.post("/tokenize", content=text)["tokens"]


def said(text: str) -> dict[str, object]:
    """Return the fields of a request that is answered with this text."""
    return {**FEW, "messages": USER, "grammar": f"root ::= {json.dumps(text)}"}


@pytest.mark.parametrize(
    ("text", "stop", "reasoning", "content"),
    [
        (REASONED, ["\n\n"], "one\n\ntwo", "three"), (REASONED, "o", "one\n\ntwo", "three\n\nf"),
        (REASONED, ["two", "ur"], "one\n\ntwo", "three\n\nfo"), (REASONED, ["t"], "one\n\ntwo", ""),
        (REASONED, ["<"], "one\n\ntwo", "three\n\nfour"),
        ("<think>\n\none</think>three\n\nfour", ["\n\n"], "one", "three"),
        ("<think>\n\none</think>the answer", ["e", "\n"], "one", "th"),
        ("three\n\nfour", ["\n\n"], "", "three"), ("\n\nthree", ["\n\n"], "", ""),
    ],
)  # fmt: skip
def test_where_stop_strings_count(server, text, stop, reasoning, content):
    (one,) = server.post(CHATS, stop=stop, **said(text))["choices"]
    message = one["message"]
    assert (message.get("reasoning_content") or "").strip() == reasoning
    assert (message["content"] or "").strip() == content
    assert one["finish_reason"] == "stop"


def test_stop_strings_in_tags_of_several_tokens(thinking_server):
    message = thinking_server.post(CHATS, stop=["\n\n"], **said(REASONED))["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"].strip()) == ("one\n\ntwo", "three")


@pytest.mark.parametrize("form", ["auto", "deepseek-legacy"])
def test_stop_strings_of_a_stream(server, form):
    sent = server.events(CHATS, {"stop": ["\n\n"], "reasoning_format": form, **said(REASONED)})
    deltas = [one["choices"][0]["delta"] for one in sent if one["choices"]]
    assert "".join(delta.get("reasoning_content") or "" for delta in deltas) == "one\n\ntwo"
    assert "".join(delta.get("content") or "" for delta in deltas).strip() == "three"


@pytest.mark.parametrize("path", ["/completion", "/v1/completions"])
def test_stop_strings_of_a_text_that_is_no_chat(server, path):
    """Nothing says that such a text begins with reasoning."""
    answer = server.post(path, prompt="a", stop=["two"], **said("one two three"))
    assert (answer["choices"][0]["text"] if "choices" in answer else answer["content"]) == "one "


@pytest.mark.parametrize("asked", [{"response_format": SCHEMA}, {"tools": TOOLS, "tool_choice": "required"}])
@pytest.mark.parametrize("budget", [0, 1, 7])
def test_a_budget_holds_with_schemas_and_required_tools(server, asked, budget):
    """The model is kept from ending its reasoning."""
    (begin,), (end,) = (tokens(server, tag) for tag in THINKING_TOKENS)
    limits = {"reasoning_budget_tokens": budget, "logit_bias": [[end, -80.0], [begin, 80.0]]}
    body = {**FEW, "messages": USER, "max_tokens": 400, **limits, **asked}
    message = server.post(CHATS, body)["choices"][0]["message"]
    assert len(tokens(server, message.get("reasoning_content") or "")) <= budget
    written = message["tool_calls"][0]["function"]["arguments"] if "tools" in asked else message["content"]
    assert {type(value) for value in json.loads(written).values()} == {int}

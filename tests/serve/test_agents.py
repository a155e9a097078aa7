"""The requests that coding agents send are answered in the forms that they read.

`python -m tools.clients.agents` recorded them in the folder agents, with words of ours in place of all texts.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.chat.templates import THINKING
from tests.serve.conftest import Server
from tools.clients.recorder import CHAT, MESSAGES, RESPONSES, brief, calling

RECORDS = {
    file.stem: json.loads(file.read_text()) for file in sorted(Path(__file__).parent.glob("agents/*.json"))
}
ASKED = [(name, index) for name, record in RECORDS.items() for index in range(len(record["requests"]))]
ENDS = ("response.completed", "response.incomplete")
GIVEN = {"one": "two"}
"""The arguments of a call."""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """Yield the demo pair with a template that has tools, and a context that holds an agent's tools."""
    options = ("--ctx", "32768", "--temp", "0", "--reasoning", "off", "--draft-length", "0")
    with Server(tmp_path_factory.mktemp("agents"), *options, template=THINKING) as server:
        yield server


def recorded(name: str, index: int) -> tuple[str, dict[str, Any]]:
    """Return the path and the body of a recorded request."""
    entry = RECORDS[name]["requests"][index]
    request = dict(entry["request"])
    if "tools" in request:
        request["tools"] = RECORDS[name]["tools"][request["tools"]]
    return entry["path"], request


def whole(server: Server, path: str, request: dict[str, Any]) -> dict[str, Any]:
    return server.post(path, {**request, "stream": False})


def events(server: Server, path: str, request: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the events of the request's stream. Their names are their types."""
    status, body = server.ask("POST", path, {**request, "stream": True})
    assert status == 200, body
    blocks = [block for block in body.decode().split("\n\n") if block.strip() and not block.startswith(":")]
    if path == CHAT:
        assert blocks.pop() == "data: [DONE]"
        return [json.loads(block.removeprefix("data: ")) for block in blocks]
    made = []
    for block in blocks:
        name, _, data = block.partition("\ndata: ")
        made.append(json.loads(data))
        assert name == f"event: {made[-1]['type']}"
    return made


def of_stream(path: str, made: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the items, blocks or calls that a stream has told, as a whole answer has them."""
    kinds = [each.get("type") for each in made]
    if path == CHAT:
        assert made[-1]["choices"] == [] or made[-1]["choices"][0]["finish_reason"]
        deltas = [each["choices"][0]["delta"] for each in made if each["choices"]]
        calls = [call for delta in deltas for call in delta.get("tool_calls", [])]
        texts = "".join(call["function"].get("arguments", "") for call in calls)
        return [{"name": calls[0]["function"]["name"], "arguments": texts}] if calls else []
    if path == RESPONSES:
        assert (kinds[0], kinds[-1] in ENDS) == ("response.created", True)
        done = [each["item"] for each in made if each["type"] == "response.output_item.done"]
        added = [each["item"] for each in made if each["type"] == "response.output_item.added"]
        assert [each["id"] for each in added] == [each["id"] for each in done]
        assert [each["type"] for each in added] == [each["type"] for each in done]
        assert made[-1]["response"]["output"] == done
        return done
    assert (kinds[0], kinds[-2:]) == ("message_start", ["message_delta", "message_stop"])
    blocks = [each["content_block"] for each in made if each["type"] == "content_block_start"]
    assert kinds.count("content_block_stop") == len(blocks)
    deltas = [each["delta"] for each in made if each["type"] == "content_block_delta"]
    texts = "".join(each["partial_json"] for each in deltas if each["type"] == "input_json_delta")
    return [{**each, "input": json.loads(texts)} if each["type"] == "tool_use" else each for each in blocks]


def of_whole(path: str, made: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the items, blocks or calls of an answer."""
    if path == CHAT:
        assert made["choices"][0]["finish_reason"]
        return [each["function"] for each in made["choices"][0]["message"].get("tool_calls") or []]
    if path == MESSAGES:
        assert (made["type"], made["role"]) == ("message", "assistant")
        assert made["stop_reason"]
    return made["output" if path == RESPONSES else "content"]


@pytest.mark.parametrize(("name", "index"), ASKED)
def test_a_recorded_request(server, name, index):
    path, request = recorded(name, index)
    request = brief(path, request, 8)
    of_whole(path, whole(server, path, request))
    of_stream(path, events(server, path, request))


def tools_of(name: str) -> dict[str, tuple[int, str]]:
    """Return a tool of each kind: the index of a request that has it, and its name."""
    found: dict[str, tuple[int, str]] = {}
    for index in range(len(RECORDS[name]["requests"])):
        for tool in recorded(name, index)[1].get("tools", []):
            kind = "custom" if tool.get("type") == "custom" else "function"
            if tool.get("type", "function") in ("custom", "function"):
                found.setdefault(kind, (index, tool.get("function", tool)["name"]))
    return found


@pytest.mark.parametrize(
    ("name", "kind", "index", "tool"),
    [(name, kind, *found) for name in RECORDS for kind, found in tools_of(name).items()],
)
def test_a_call_has_the_kind_of_its_tool(server, name, kind, index, tool):
    path, request = recorded(name, index)
    given, most = (GIVEN, 400) if kind == "function" else (None, 200)  # a custom tool takes any text
    asked = calling(path, brief(path, request, most), (tool, given))
    for (call,) in (of_whole(path, whole(server, path, asked)), of_stream(path, events(server, path, asked))):
        assert call["name"] == tool
        if kind == "custom":
            assert (call["type"], type(call["input"])) == ("custom_tool_call", str)
            assert "arguments" not in call
        elif path == MESSAGES:
            assert (call["type"], call["input"]) == ("tool_use", GIVEN)
        else:
            assert json.loads(call["arguments"]) == GIVEN

"""tools.clients: its table, scripts and page agree; records of agents hold no words of others."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tools.clients.__main__ import SCRIPTS, Result, agent_row, page
from tools.clients.recorder import CHAT, MESSAGES, calling
from tools.clients.serving import RECORDS, ROOT
from tools.clients.shapes import LONGEST, TEXT, Shaper, laid_out
from tools.clients.table import CLIENTS

NAME = "a_tool_whose_name_is_longer_than_any_text"


def test_each_client_has_a_script_and_exact_versions():
    scripts = {path.name for path in SCRIPTS.iterdir() if path.is_file()}
    named = {f"{each.name}.{'mjs' if each.is_node else 'py'}" for each in CLIENTS}
    assert scripts == named | {"__init__.py", "shared.mjs"}
    for client in CLIENTS:
        for words in client.packages:
            assert re.fullmatch(r".+@\d[\d.]+" if client.is_node else r".+==\d[\d.]+", words), words


def test_the_page_has_the_clients_of_the_table():
    text = (ROOT / "docs" / "clients.md").read_text()
    for client in CLIENTS:
        place = " (npm)" if client.is_node else ""
        assert f"| {client.package}{place} | {client.version} |" in text
    for file in RECORDS.glob("*.json"):
        assert agent_row(file) in text


def test_a_page_names_faults():
    result = Result(CLIENTS[0], "1", ["chat", "stream"], {"tool call": "KeyError: `a` | b"})
    made = page([result])
    assert "| openai | 1 |" in made
    assert "chat, stream | tool call: `KeyError: 'a' / b` |" in made


def test_a_shape_has_no_free_text():
    request = {
        "instructions": "Be kind.", "model": "m",
        "tools": [{"name": NAME, "description": "Does.",
                   "parameters": {"properties": {"title": {"type": "string", "description": "Why."}}}}],
        "input": [{"type": "function_call", "call_id": "c9", "name": "f", "arguments": '{"path": "/home"}'},
                  {"type": "function_call_output", "call_id": "c9", "output": "me"}],
    }  # fmt: skip
    made = Shaper().shape(request)
    assert made["instructions"] == TEXT
    assert made["model"] == "m"
    (tool,) = made["tools"]
    assert tool == {
        "name": NAME, "description": TEXT,
        "parameters": {"properties": {"title": {"type": "string", "description": TEXT}}},
    }  # fmt: skip
    assert made["input"][0]["arguments"] == json.dumps({"path": TEXT})
    assert made["input"][0]["call_id"] == made["input"][1]["call_id"] == "id_0"
    assert made["input"][1]["output"] == TEXT


def texts(value, field=""):
    if isinstance(value, dict):
        for key, each in value.items():
            yield from texts(each, key)
    elif isinstance(value, list):
        for each in value:
            yield from texts(each, field)
    elif isinstance(value, str):
        yield field, value


@pytest.mark.parametrize("file", sorted(RECORDS.glob("*.json")), ids=lambda file: file.stem)
def test_a_record_is_a_shape(file: Path):
    record = json.loads(file.read_text())
    assert laid_out(record) + "\n" == file.read_text()
    for field, text in texts([record["tools"], [each["request"] for each in record["requests"]]]):
        if field == "description":
            assert text == TEXT
        assert len(text) <= LONGEST or field in ("name", "pattern", "$schema", "arguments", "enum"), (
            field,
            text,
        )


def test_a_call_is_the_only_answer():
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    made = calling(CHAT, {"tools": [tool]}, ("f", {"a": 1}))
    assert made["tool_choice"] == {"type": "function", "function": {"name": "f"}}
    assert made["tools"][0]["function"]["parameters"]["properties"] == {"a": {"const": 1}}
    assert tool["function"]["parameters"] == {"type": "object"}
    made = calling(MESSAGES, {"tools": [{"name": "f", "input_schema": {}}]}, ("f", {"a": 1}))
    assert made["tools"][0]["input_schema"]["required"] == ["a"]

"""Forms of requests that programs send, and that llama.cpp's handlers refuse or pass over.

They are put into a form that is read. What has no meaning here is left out: null, items of tools that another
server runs, and reasoning that only its maker can read. A field that would change the answer, and that nobody
honours, is refused by name.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterator, Mapping
from typing import Any

from spac.serve import custom_tools
from spac.serve.refusal import Refusal

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
NOT_HONOURED = {
    "suffix": "it is no completion that fills in: use /infill with a model that has tokens for it",
}
"""Fields of completions that would change an answer, with the reason why they are refused."""
_PATHS = (CHAT, RESPONSES, MESSAGES, "/v1/messages/count_tokens", "/v1/chat/completions/input_tokens",
          "/v1/responses/input_tokens", "/apply-template")  # fmt: skip
_SKIPPED = ("web_search_call", "file_search_call", "computer_call", "computer_call_output", "compaction",
            "image_generation_call", "code_interpreter_call", "item_reference", "mcp_list_tools", "mcp_call",
            "mcp_approval_request", "mcp_approval_response")  # fmt: skip
"""Items of Responses that tell of tools which another server ran, or that another server keeps."""


def reads(path: str) -> bool:
    """Return True if requests at this path are changed or refused."""
    return path in _PATHS or path == COMPLETIONS


def read(path: str, request: dict[str, Any]) -> None:
    """Change a request into the form that llama.cpp reads. Raise Refusal for what nobody honours."""
    if path == COMPLETIONS:
        for name, why in NOT_HONOURED.items():
            if request.get(name):
                raise Refusal(400, f"{name} is not supported: {why}")
        return
    for name in [name for name, value in request.items() if value is None]:
        del request[name]
    if path.startswith(MESSAGES):
        _read_anthropic(request)
    if path.startswith(RESPONSES) and isinstance(text := request.get("text"), dict):
        _ask_for(request, text.get("format"))
    for message in _objects(request.get("messages")):
        _read_message(message)
    if isinstance(items := request.get("input"), list):
        request["input"] = [item for each in items for item in _items(each)]
    for tool in _objects(request.get("tools")):
        if path.startswith(RESPONSES) and tool.get("type") == "custom":
            custom_tools.as_function(tool)
        for each in (tool, tool.get("function")):
            if isinstance(each, dict):
                _drop_nulls(each)
                for name in ("parameters", "input_schema"):
                    if name in each:
                        each[name] = _schema(each[name])
    for name in ("response_format", "text", "output_config"):
        if isinstance(form := request.get(name), dict):
            _read_schemas(form)


def _read_anthropic(request: dict[str, Any]) -> None:
    """Say in a chat's fields what Anthropic's fields ask for: no reasoning, and the form of an answer.

    Raise Refusal for several answers, which Messages have no place for.
    """
    for name in ("n", "n_cmpl"):
        if request.get(name, 1) != 1:
            raise Refusal(400, f"{name} must be 1: Messages have one answer")
    thinking, config = request.get("thinking"), request.get("output_config")
    if isinstance(thinking, dict) and thinking.get("type") == "disabled":
        given = request.get("chat_template_kwargs")
        request["chat_template_kwargs"] = {
            "enable_thinking": False,
            **(given if isinstance(given, dict) else {}),
        }
    _ask_for(request, config.get("format") if isinstance(config, dict) else request.get("output_format"))


def _ask_for(request: dict[str, Any], form: Any) -> None:
    """Ask for an answer's form as a chat does. llama.cpp passes over the fields of other interfaces."""
    if isinstance(form, dict) and form.get("type") == "json_schema":
        schema = {"name": "answer", "schema": form.get("schema")}
        request.setdefault("response_format", {"type": "json_schema", "json_schema": schema})
    elif isinstance(form, dict) and form.get("type") == "json_object":
        request.setdefault("response_format", {"type": "json_object"})


def _read_message(message: dict[str, Any]) -> None:
    _drop_nulls(message, keeps=("content",))
    for call in _objects(message.get("tool_calls")):
        _drop_nulls(call)
        if isinstance(function := call.get("function"), dict):
            _drop_nulls(function)
    if isinstance(message.get("content"), list):
        message["content"] = [_part(each) for each in message["content"]]


def _part(part: Any) -> Any:
    """Return a part of a message's content in the form of chats, or of Anthropic's messages."""
    if not isinstance(part, dict):
        return part
    _drop_nulls(part, keeps=("content",))
    kind = part.get("type")
    if kind in ("input_text", "output_text"):
        return {"type": "text", "text": part.get("text", "")}
    if kind == "input_image" and isinstance(part.get("image_url"), str):
        return {"type": "image_url", "image_url": {"url": part["image_url"]}}
    if (
        kind == "document"
        and isinstance(source := part.get("source"), Mapping)
        and source.get("type") == "text"
    ):
        title = f"{part['title']}\n" if isinstance(part.get("title"), str) else ""
        return {"type": "text", "text": title + str(source.get("data", ""))}
    return part


def _items(item: Any) -> Iterator[Any]:
    """Yield what an item of Responses' input becomes, which may be nothing."""
    if not isinstance(item, dict):
        yield item
        return
    _drop_nulls(item)
    kind = item.get("type")
    if kind in _SKIPPED or (kind == "reasoning" and not isinstance(item.get("content"), list)):
        return
    if kind in ("custom_tool_call", "local_shell_call"):
        what = {"input": item.get("input", "")} if kind == "custom_tool_call" else item.get("action", {})
        yield {
            "type": "function_call", "call_id": item.get("call_id", ""), "arguments": json.dumps(what),
            "name": item.get("name", "local_shell"),
        }  # fmt: skip
        return
    if kind in ("custom_tool_call_output", "local_shell_call_output"):
        output = item.get("output", "")
        text = output if isinstance(output, str | list) else json.dumps(output)
        yield {
            "type": "function_call_output",
            "call_id": item.get("call_id", item.get("id", "")),
            "output": text,
        }
        return
    if isinstance(content := item.get("content"), list):
        item["content"] = [_text_of_file(each) for each in content]
    yield item


def _text_of_file(part: Any) -> Any:
    """Return a file of text as text. Raise Refusal for another one."""
    if not isinstance(part, dict) or part.get("type") != "input_file":
        return part
    name, data = part.get("filename", "a file"), part.get("file_data")
    head, _, body = str(data or "").partition(",")
    try:
        text = base64.b64decode(body if head.startswith("data:") else head, validate=True).decode()
    except (binascii.Error, ValueError):
        text = ""
    if not text:
        raise Refusal(400, f"input_file: {name} is no text in file_data: send its text")
    return {"type": "input_text", "text": f"{name}:\n{text}"}


def _read_schemas(form: dict[str, Any]) -> None:
    """Put the schemas of an answer's form into the form that llama.cpp reads."""
    for name in ("schema", "json_schema", "format"):
        if not isinstance(inner := form.get(name), dict):
            continue
        if name == "schema":
            form[name] = _schema(inner)
        elif "schema" in inner:
            _read_schemas(inner)
        elif name == "json_schema":
            form[name] = _schema(inner)


def _schema(schema: Any) -> Any:
    """Return a schema in which `true` stands for any value, and what is `false` is not there."""
    if schema is True:
        return {}
    if not isinstance(schema, dict):
        return schema
    found = dict(schema)
    for name in ("items", "contains", "not", "if", "then", "else"):
        if name in found:
            found[name] = _schema(found[name])
    for name in ("anyOf", "oneOf", "allOf", "prefixItems"):
        if isinstance(each := found.get(name), list):
            found[name] = [_schema(one) for one in each if one is not False]
    for name in ("properties", "$defs", "definitions", "patternProperties"):
        if isinstance(each := found.get(name), dict):
            found[name] = {key: _schema(one) for key, one in each.items() if one is not False}
    return found


def _objects(value: Any) -> list[dict[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _drop_nulls(value: dict[str, Any], keeps: tuple[str, ...] = ()) -> None:
    for name in [name for name, each in value.items() if each is None and name not in keeps]:
        del value[name]

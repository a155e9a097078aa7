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
EMBEDDINGS = "/v1/embeddings"
NOT_HONOURED = {
    COMPLETIONS: {
        "suffix": "it is no completion that fills in: use /infill with a model that has tokens for it",
        "response_format": "use json_schema, or chats",
    },
    CHAT: {
        "functions": "use tools",
        "function_call": "use tool_choice",
        "echo": "only completions repeat their prompt",
        "chat_template": "the server is started with one",
    },
    RESPONSES: {
        "background": "the answer comes at once: leave it out",
        "conversation": "nothing is stored: send the whole conversation as input",
        "previous_response_id": "nothing is stored: send the whole conversation as input",
        "prompt": "nothing is stored: send its text as instructions",
        "top_logprobs": "only completions and chats tell probabilities",
    },
    EMBEDDINGS: {"dimensions": "vectors are not shortened"},
}
"""Fields that would change an answer, by interface, with the reason why they are refused."""
_PATHS = (CHAT, RESPONSES, MESSAGES, "/v1/messages/count_tokens", "/v1/chat/completions/input_tokens",
          "/v1/responses/input_tokens", "/apply-template")  # fmt: skip
_SKIPPED = ("web_search_call", "file_search_call", "computer_call", "computer_call_output", "compaction",
            "image_generation_call", "code_interpreter_call", "item_reference", "mcp_list_tools", "mcp_call",
            "mcp_approval_request", "mcp_approval_response", "tool_search_call", "tool_search_output",
            "additional_tools", "program", "program_output", "compaction_trigger",
            "configuration_update")  # fmt: skip
"""Items of Responses that tell of tools which another server ran, or that another server keeps."""
_OWN_CALLS = ("local_shell_call", "shell_call", "apply_patch_call")
"""Calls of Responses that have a tool of their own, which the client runs."""
_SERVER_TOOLS = ("web_search_", "web_fetch_", "code_execution_", "tool_search_tool_", "mcp_toolset")
"""The beginnings of the types of tools that Anthropic's server runs."""


def reads(path: str) -> bool:
    """Return True if requests at this path are changed or refused."""
    return path in _PATHS or path in NOT_HONOURED


def read(path: str, request: dict[str, Any]) -> None:
    """Change a request into the form that llama.cpp reads. Raise Refusal for what nobody honours."""
    _check_honoured(path, request)
    if path not in _PATHS:
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
    if path.startswith(RESPONSES) and isinstance(tools := request.get("tools"), list):
        request["tools"] = [each for each in tools if _type_of(each) in ("function", "custom", None)]
    for tool in _objects(request.get("tools")):
        if tool.get("type") == "custom" and not path.startswith(MESSAGES):  # where it is the usual kind
            custom_tools.as_function(tool)
        function = tool.get("function")
        is_named = isinstance(function, dict) and isinstance(function.get("name"), str)
        if path == CHAT and not (tool.get("type") == "function" and is_named):
            raise Refusal(
                400, "tools: each must have the type function or custom, and an object with its name"
            )
        for each in (tool, function):
            if isinstance(each, dict):
                _drop_nulls(each)
                for name in ("parameters", "input_schema"):
                    if name in each:
                        each[name] = _schema(each[name])
    for name in ("response_format", "text", "output_config"):
        if isinstance(form := request.get(name), dict):
            _read_schemas(form)


def _check_honoured(path: str, request: dict[str, Any]) -> None:
    """Raise Refusal for a field that would change an answer, and that nobody honours."""
    for name, why in NOT_HONOURED.get(path, {}).items():
        if request.pop(name, None) not in (None, False, 0, "", [], {}, {"type": "text"}):
            raise Refusal(400, f"{name} is not supported: {why}")
    if request.get("modalities") not in (None, [], ["text"]):
        raise Refusal(400, "modalities must be text: sound is not made")
    best, n = request.get("best_of"), request.get("n") or request.get("n_cmpl") or 1
    if path == COMPLETIONS and best is not None and best != n:
        raise Refusal(400, f"best_of must be {n}, the number of answers: all that are made are handed out")
    for name in ("n", "n_cmpl"):
        if path.startswith((RESPONSES, MESSAGES)) and request.get(name) not in (None, 1):
            raise Refusal(400, f"{name} must be 1: Responses and Messages have one answer")


def _read_anthropic(request: dict[str, Any]) -> None:
    """Say in a chat's fields what Anthropic's fields ask for: tools, reasoning, and the form of an answer."""
    if isinstance(tools := request.get("tools"), list):
        request["tools"] = [each for each in tools if not _runs_elsewhere(each)]
    choice = request.get("tool_choice")
    if isinstance(choice, dict) and choice.get("type") == "none":
        request.pop("tools", None)
    if isinstance(choice, dict) and choice.get("disable_parallel_tool_use"):
        request.setdefault("parallel_tool_calls", False)
    thinking, config = request.get("thinking"), request.get("output_config")
    if isinstance(config, dict) and isinstance(effort := config.get("effort"), str):
        request.setdefault("reasoning_effort", effort)
    if isinstance(thinking, dict) and thinking.get("type") == "disabled":
        given = request.get("chat_template_kwargs")
        request["chat_template_kwargs"] = {
            "enable_thinking": False,
            **(given if isinstance(given, dict) else {}),
        }
    _ask_for(request, config.get("format") if isinstance(config, dict) else request.get("output_format"))


def _runs_elsewhere(tool: Any) -> bool:
    return isinstance(tool, dict) and str(tool.get("type")).startswith(_SERVER_TOOLS)


def _ask_for(request: dict[str, Any], form: Any) -> None:
    """Ask for an answer's form as a chat does. llama.cpp passes over the fields of other interfaces."""
    if isinstance(form, dict) and form.get("type") == "json_schema":
        schema = {"name": "answer", "schema": form.get("schema")}
        request.setdefault("response_format", {"type": "json_schema", "json_schema": schema})
    elif isinstance(form, dict) and form.get("type") == "json_object":
        request.setdefault("response_format", {"type": "json_object"})


def _read_message(message: dict[str, Any]) -> None:
    _drop_nulls(message, keeps=("content",))
    if isinstance(old := message.pop("function_call", None), dict):  # OpenAI's first form of tools
        message["tool_calls"] = [{"type": "function", "function": old}]
    if message.get("role") == "function":
        message["role"] = "tool"
    for call in _objects(message.get("tool_calls")):
        _drop_nulls(call)
        custom_tools.as_call(call)
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
    if kind == "refusal":
        return {"type": "text", "text": part.get("refusal", "")}
    if kind == "file" and isinstance(part.get("file"), dict):
        return {"type": "text", "text": _text_of_file(part["file"])}
    if kind == "input_image" and isinstance(part.get("image_url"), str):
        return {"type": "image_url", "image_url": {"url": part["image_url"]}}
    if kind == "image" and _type_of(part.get("source")) == "file":
        raise Refusal(400, "an image of type file is not here: send it in base64")
    if kind in ("document", "search_result"):
        return _text_of_document(part)
    if kind == "tool_result" and isinstance(content := part.get("content"), list):
        part["content"] = [_part(each) for each in content]
    return part


def _type_of(value: Any) -> Any:
    return value.get("type") if isinstance(value, Mapping) else None


def _text_of_document(part: dict[str, Any]) -> dict[str, Any]:
    """Return a document or a search's result as text, if it is text or a list of blocks of text."""
    source = part.get("source")
    data = part.get("content")
    if isinstance(source, Mapping):
        data = source.get("data") if source.get("type") == "text" else source.get("content")
    if isinstance(data, list):
        data = "\n".join(str(each.get("text", "")) for each in _objects(data))
    if not isinstance(data, str):
        return part
    head = [each for each in (part.get("title"), source) if isinstance(each, str)]
    return {"type": "text", "text": "\n".join([*head, data])}


def _items(item: Any) -> Iterator[Any]:
    """Yield what an item of Responses' input becomes, which may be nothing."""
    if not isinstance(item, dict):
        yield item
        return
    _drop_nulls(item)
    if "role" in item:
        item.setdefault("type", "message")
    kind = str(item.get("type"))
    has_content = isinstance(item.get("content"), list) and item["content"]
    if kind in _SKIPPED or (kind == "reasoning" and not has_content):
        return
    base = kind.removesuffix("_output")
    if base != kind and (base in _OWN_CALLS or base == "custom_tool_call"):
        output = item.get("output", item.get("status", ""))
        is_read = isinstance(output, str) or (isinstance(output, list) and base == "custom_tool_call")
        yield from _items({
            "type": "function_call_output", "call_id": item.get("call_id", item.get("id", "")),
            "output": output if is_read else json.dumps(output),
        })  # fmt: skip
    elif base in _OWN_CALLS or base == "custom_tool_call":
        what = {"input": item.get("input", "")} if base == "custom_tool_call" else _what_is_called(item)
        yield {
            "type": "function_call", "call_id": item.get("call_id", ""), "arguments": json.dumps(what),
            "name": item.get("name", kind.removesuffix("_call")),
        }  # fmt: skip
    else:
        for name in ("content", "output"):
            if isinstance(parts := item.get(name), list) and kind != "reasoning":
                item[name] = [_part_of_item(each) for each in parts]
        yield item


def _what_is_called(item: Mapping[str, Any]) -> Any:
    return item.get("action", item.get("operation", {}))


def _part_of_item(part: Any) -> Any:
    """Return a part of an item in a form that llama.cpp reads. Raise Refusal for a file of no text."""
    kind = _type_of(part)
    if kind == "input_file":
        return {"type": "input_text", "text": _text_of_file(part)}
    if kind in ("text", "refusal"):
        return {"type": "input_text", "text": part.get(kind, "")}
    return part


def _text_of_file(file: Mapping[str, Any]) -> str:
    """Return a file of text with its name. Raise Refusal for another one."""
    name, data = file.get("filename", "a file"), file.get("file_data")
    head, _, body = str(data or "").partition(",")
    try:
        text = base64.b64decode(body if head.startswith("data:") else head, validate=True).decode()
    except (binascii.Error, ValueError):
        text = ""
    if not text:
        raise Refusal(400, f"{name} is no text in file_data: send its text")
    return f"{name}:\n{text}"


def _read_schemas(form: dict[str, Any]) -> None:
    """Put the schemas of an answer's form into the form that llama.cpp reads."""
    for name in ("schema", "json_schema", "format"):
        inner = form.get(name)
        if name == "schema" and inner is True:
            form[name] = {}
        if not isinstance(inner, dict):
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

"""A proxy between an agent and `spac serve`, which keeps the shapes of the requests.

The server gets the shapes, so that its small model reads them quickly. The answers to the first requests with
tools are made to call one with given arguments: the agent then runs it, and sends its output.
"""

from __future__ import annotations

import contextlib
import copy
import json
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route

from tools.clients.shapes import Shaper

RESPONSES, MESSAGES, CHAT = "/v1/responses", "/v1/messages", "/v1/chat/completions"
Call = tuple[str, dict[str, Any] | None]
"""The name of a tool and its arguments, which are None for a custom tool."""


def calling(path: str, request: dict[str, Any], call: Call) -> dict[str, Any]:
    """Return a request whose answer is this call, because the tool's schema has these arguments alone."""
    name, arguments = call
    made = copy.deepcopy(request)
    if path != MESSAGES:
        made["parallel_tool_calls"] = False
    for tool in made["tools"]:
        inner = tool.get("function", tool)
        if inner.get("name") == name and arguments is not None:
            schema = {
                "type": "object", "required": list(arguments), "additionalProperties": False,
                "properties": {key: {"const": value} for key, value in arguments.items()},
            }  # fmt: skip
            inner["input_schema" if path == MESSAGES else "parameters"] = schema
    kind = "custom" if arguments is None else "function"
    made["tool_choice"] = {
        CHAT: {"type": "function", "function": {"name": name}},
        MESSAGES: {"type": "tool", "name": name, "disable_parallel_tool_use": True},
        RESPONSES: {"type": kind, "name": name},
    }[path]
    return made


def brief(path: str, request: dict[str, Any], tokens: int) -> dict[str, Any]:
    """Return a request whose answer has so many tokens at most."""
    names = ("max_tokens", "max_completion_tokens", "max_output_tokens")
    kept = {name: value for name, value in request.items() if name not in names}
    return {**kept, names[2 if path == RESPONSES else 0]: tokens}


@contextlib.contextmanager
def recording(address: str, key: str, calls: Sequence[Call]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Yield the address of a proxy of the server at `address`, and a list that gets each request for an
    answer: its path, shape and status. The first ones with tools are answered by `calls`."""
    client = httpx.AsyncClient(base_url=address, headers={"authorization": f"Bearer {key}"}, timeout=300)
    seen: list[dict[str, Any]] = []
    shaper, rest = Shaper(), list(calls)

    async def pass_on(request: Request) -> StreamingResponse:
        path, body, entry = request.url.path, await request.body(), dict[str, Any]()
        if request.method == "POST" and path in (RESPONSES, MESSAGES, CHAT):
            shape = shaper.shape(json.loads(body))
            entry |= {"path": path, "status": 0, "request": shape}
            seen.append(entry)
            asked = brief(path, shape, 40)
            if shape.get("tools") and rest:
                asked = calling(path, brief(path, shape, 400), rest.pop(0))
            body = json.dumps(asked).encode()
        url, kind = f"{path}?{request.url.query}", {"content-type": "application/json"}
        sent = client.build_request(request.method, url, content=body, headers=kind)
        answer = await client.send(sent, stream=True)
        entry["status"] = answer.status_code
        kind = {"content-type": answer.headers.get("content-type", "application/json")}
        return StreamingResponse(answer.aiter_bytes(), answer.status_code, kind)

    app = Starlette(routes=[Route("/{path:path}", pass_on, methods=["GET", "POST"])])
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}", seen
    finally:
        server.should_exit = True
        thread.join()

"""A proxy between an agent and `spac serve`, which keeps the shapes of the requests.

The server gets the shapes, so that its small model reads them quickly. The answers to the first requests with
tools are made to call one with given arguments: the agent then runs it, and sends its output.
"""

from __future__ import annotations

import copy
import http.client
import json
import threading
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

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


class Recorder(ThreadingHTTPServer):
    """Passes requests on to the server at `address`. `calls` are what the answers to the first ones call."""

    daemon_threads = True

    def __init__(self, address: str, key: str, calls: Sequence[Call]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.address, self.key, self.calls = address, key, list(calls)
        self.seen: list[dict[str, Any]] = []
        """The path, shape, and status of each request that asks for an answer."""
        self.shaper = Shaper()
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        """The address of the proxy."""
        return f"http://127.0.0.1:{self.server_address[1]}"

    def __enter__(self) -> Recorder:
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    server: Recorder

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        self._pass_on(None)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        path = self.path.partition("?")[0]
        if path not in (RESPONSES, MESSAGES, CHAT):
            self._pass_on(body)
            return
        recorder = self.server
        with recorder.lock:
            shape = recorder.shaper.shape(json.loads(body))
            entry = {"path": path, "status": 0, "request": shape}
            recorder.seen.append(entry)
            asked = brief(path, shape, 40)
            has_tools = bool(shape.get("tools"))
            if has_tools and recorder.calls:
                asked = calling(path, brief(path, shape, 400), recorder.calls.pop(0))
        entry["status"] = self._pass_on(json.dumps(asked).encode())

    def _pass_on(self, body: bytes | None) -> int:
        connection = http.client.HTTPConnection(self.server.address.removeprefix("http://"), timeout=300)
        fields = {"authorization": f"Bearer {self.server.key}", "content-type": "application/json"}
        connection.request(self.command, self.path, body, fields)
        response = connection.getresponse()
        self.send_response_only(response.status)
        self.send_header("content-type", response.headers.get("content-type", "application/json"))
        self.send_header("connection", "close")
        self.end_headers()
        while part := response.read1():
            self.wfile.write(part)
            self.wfile.flush()
        connection.close()
        self.close_connection = True
        return response.status

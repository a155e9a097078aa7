"""The server on llama.cpp's own loop: the front checks who may ask, and its handlers answer.

Bodies, answers and streams pass unchanged. llama.cpp knows the forms of OpenAI, Anthropic and llama-server.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import queue
import threading
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, quote

from starlette.concurrency import run_in_threadpool
from starlette.routing import Router

from spac.errors import InputError
from spac.serve.admin import VRAM, change_memory
from spac.serve.checks import parsed
from spac.serve.doors import refusal_body
from spac.serve.loop_checks import check, with_images
from spac.serve.middleware import ALIASES, POLLED, Receive, Send, read_body
from spac.serve.page import page_routes
from spac.serve.page.live import LiveFeed
from spac.serve.refusal import GONE, Refusal, refusal_of
from spac.serve.request_queue import Full, full
from spac.serve.state import Scope, ServerState

if TYPE_CHECKING:
    from spac import _core
    from spac.engine import Engine

READS = {
    "/health": "health", "/v1/health": "health", "/props": "props", "/slots": "slots",
    "/v1/models": "v1/models", "/lora-adapters": "lora-adapters",
}  # fmt: skip
"""The routes of GET by path."""
ANSWERS = {
    "/completion": "completion", "/v1/completions": "v1/completions",
    "/v1/chat/completions": "v1/chat/completions", "/v1/responses": "v1/responses",
    "/v1/messages": "v1/messages", "/infill": "infill", "/embedding": "embedding",
    "/v1/embeddings": "v1/embeddings", "/v1/rerank": "v1/rerank",
}  # fmt: skip
"""The routes of POST that use a slot, by path. They wait in the queue."""
TOOLS = {
    "/props": "set-props", "/tokenize": "tokenize", "/detokenize": "detokenize",
    "/apply-template": "apply-template", "/v1/chat/completions/control": "v1/chat/completions/control",
    "/v1/messages/count_tokens": "v1/messages/count_tokens",
    "/v1/chat/completions/input_tokens": "v1/chat/completions/input_tokens",
    "/v1/responses/input_tokens": "v1/responses/input_tokens", "/lora-adapters": "set-lora-adapters",
}  # fmt: skip
"""The other routes of POST."""
SHORT = {
    **ALIASES, "/completions": "/completion", "/rerank": "/v1/rerank", "/reranking": "/v1/rerank",
    "/v1/reranking": "/v1/rerank", "/chat/completions/input_tokens": "/v1/chat/completions/input_tokens",
    "/responses/input_tokens": "/v1/responses/input_tokens",
}  # fmt: skip
"""llama-server's other paths of routes."""
METHODS = ("GET", "POST", "DELETE", "OPTIONS")
"""The methods that pages of other origins may use, as with llama-server."""
ERRORS = {
    401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error",
    501: "not_supported_error", 503: "unavailable_error",
}  # fmt: skip
"""The types of llama-server's errors by status, beside those of faults of the request or the server."""


class LoopRequest:
    """A request that runs or waits; `ServerState` cancels it when the server stops."""

    run = None
    """No run of spac's own loop."""

    def __init__(self) -> None:
        self.waits = True
        """True until the request's turn has come."""
        self.concluded = False
        """True if the answer should end; llama.cpp's loop cannot end one early but by cancelling it."""
        self._left = asyncio.Event()
        self._answer: _core.LoopResponse | None = None

    def begin(self, answer: _core.LoopResponse) -> None:
        """Note the answer, which `cancel` ends."""
        self.waits, self._answer = False, answer
        if self._left.is_set():
            answer.cancel()

    def cancel(self) -> None:
        """End the request. Call this in the event loop's thread."""
        self._left.set()
        if self._answer is not None:
            self._answer.cancel()

    @property
    def cancelled(self) -> bool:
        """True once the request was cancelled."""
        return self._left.is_set()

    async def watch(self, receive: Receive) -> None:
        """Cancel the request when its client leaves."""
        while (await receive())["type"] != "http.disconnect":
            pass
        self.cancel()


class LoopApp:
    """The ASGI app in front of an engine's `loop`."""

    def __init__(
        self, engine: Engine, state: ServerState, *, has_page: bool = False, fetches: bool = False
    ) -> None:
        """Stand in front of the engine's loop.

        `has_page` offers the page at /, and `fetches` fetches images at http and https addresses.
        """
        assert engine.loop is not None
        self._engine, self._loop, self._state = engine, engine.loop, state
        self._feed = LiveFeed(self, answers=self._answers if engine.n_sequences > 1 else None)
        self._fetches = fetches
        self._page = Router(page_routes(self._feed)) if has_page else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        began = time.monotonic()
        path = SHORT.get(scope["path"], str(scope["path"]))
        status = 500
        try:
            self._state.admit(path, scope)
            status = await self._answer(path, scope, receive, send)
        except Exception as error:
            refusal = refusal_of(error)
            status = refusal.status
            if status != GONE:
                await _send(send, status, _body_of(path, refusal), refusal.fields())
        seconds = time.monotonic() - began
        known = path in ANSWERS
        self._state.metrics.requests.labels(path if known else "other", str(status)).inc()
        if known:
            self._state.metrics.seconds.observe(seconds)
        if path not in POLLED:
            now = time.strftime("%H:%M:%S")
            self._state.log(f"{now} {scope['method']} {quote(scope['path'])} {status}: {seconds:.2f} s")

    async def _answer(self, path: str, scope: Scope, receive: Receive, send: Send) -> int:
        """Answer a request, and return the status."""
        if self._page is not None and (path == "/" or path.startswith("/page/")):
            await self._page(scope, receive, send)
            return 200
        reads = scope["method"] in ("GET", "HEAD")
        body = b"" if reads else await read_body(receive)
        if path == VRAM and not reads:
            return await _send(send, 200, await run_in_threadpool(change_memory, self, parsed(body)))
        params = dict(parse_qsl(scope.get("query_string", b"").decode("latin-1")))
        if reads and path == "/metrics":
            return await self._send_metrics(params, send)
        route = (READS if reads else {**ANSWERS, **TOOLS}).get(path)
        if route is None and path.startswith("/slots/") and not reads:
            route, params["id_slot"] = "slot", path.removeprefix("/slots/")
        if route is None:
            known = path in READS or path in ANSWERS or path in TOOLS or path == VRAM
            raise Refusal(405 if known else 404, f"{scope['method']} {path}: no such route")
        if path in ANSWERS:
            names = self._state.models if self._state.strict_model else None
            await run_in_threadpool(check, path, body, self._engine.target.pointer, names)
            if self._fetches:
                body = await run_in_threadpool(with_images, body)
        request = LoopRequest()
        self._state.requests.add(request)
        watch = asyncio.create_task(request.watch(receive))
        try:
            if path not in ANSWERS:
                return await self._run(request, route, body, params, send)
            try:
                async with self._state.queue.held():
                    self._feed.begin()
                    try:
                        return await self._run(request, route, body, params, send)
                    finally:
                        self._feed.end()
            except Full:
                raise full(self._state.queue) from None
        finally:
            watch.cancel()
            self._state.requests.discard(request)

    async def _run(
        self, request: LoopRequest, route: str, body: bytes, params: dict[str, str], send: Send
    ) -> int:
        """Let llama.cpp's handler answer, and send what it says."""
        if request.cancelled:
            raise Refusal(GONE, "the client left")
        answer = self._loop.begin(route, body, params)
        request.begin(answer)
        try:
            await run_in_threadpool(answer.run)
            if request.cancelled:
                raise Refusal(GONE, "the client left")
            fields = _fields_of(answer)
            if not answer.is_stream:
                return await _send(send, answer.status, answer.body, fields)
            await send({"type": "http.response.start", "status": answer.status, "headers": fields + _STREAM})
            async for part in _parts(answer):
                await send({"type": "http.response.body", "body": part, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
            return GONE if request.cancelled else answer.status
        finally:
            answer.cancel()
            await run_in_threadpool(answer.close)

    async def _send_metrics(self, params: dict[str, str], send: Send) -> int:
        """Send the metrics of the front, and then those of llama.cpp's server."""
        answer = self._loop.begin("metrics", b"", params)
        try:
            await run_in_threadpool(answer.run)
            text = self._state.metrics.text() + (answer.body if answer.status == 200 else b"")
            return await _send(send, 200, text, [*_fields_of(answer)[1:], _TEXT])
        finally:
            await run_in_threadpool(answer.close)

    async def _answers(self) -> dict[str, Any]:
        """Return the figures of the answers that run, for the page."""

        def read() -> list[dict[str, Any]]:
            answer = self._loop.begin("slots", b"")
            answer.run()
            slots: list[dict[str, Any]] = json.loads(answer.body) if answer.status == 200 else []
            answer.close()
            return slots

        try:
            running = [_row(slot) for slot in await run_in_threadpool(read) if slot["is_processing"]]
        except InputError:  # the loop is closed
            running = []
        return {"running": len(running), "waiting": self._state.queue.n_waiting, "sequences": running}

    @property
    def engine(self) -> Engine:
        """The engine, whose memory `/admin/vram` changes."""
        return self._engine


def _row(slot: dict[str, Any]) -> dict[str, Any]:
    """Return what the page shows of a slot's answer."""
    times, total = slot["timings"], slot["n_prompt_tokens_total"]
    return {
        "id": slot["id_task"],
        "prompt": total,
        "pending": max(0, total - times["cache_n"] - times["prompt_n"]),
        "tokens": times["predicted_n"],
        "seconds": round(times["predicted_ms"] / 1e3, 3),
        "drafted": times.get("draft_n", 0),
        "accepted": times.get("draft_n_accepted", 0),
    }


_TEXT = (b"content-type", b"text/plain; version=0.0.4; charset=utf-8")
_STREAM = [(b"cache-control", b"no-store"), (b"x-accel-buffering", b"no")]


def _fields_of(answer: _core.LoopResponse) -> list[tuple[bytes, bytes]]:
    """Return the header fields of an answer, the body's type first."""
    fields = {"content-type": answer.content_type, **answer.headers}
    return [(name.lower().encode(), value.encode()) for name, value in fields.items()]


def _body_of(path: str, refusal: Refusal) -> dict[str, Any]:
    """Return the body of a refusal, in Anthropic's form or in that of llama-server's errors."""
    if path.startswith("/v1/messages"):
        return refusal_body(path, refusal)
    kind = "server_error" if refusal.status >= 500 else "invalid_request_error"
    kind = ERRORS.get(refusal.status, kind)
    return {"error": {"code": refusal.status, "message": refusal.message, "type": kind}}


_STACK_BYTES = 320 << 20  # address space for the handlers' recursions (csrc/session/big_stack.h)


async def _parts(answer: _core.LoopResponse) -> AsyncIterator[bytes]:
    """Yield a stream, all together that has come since the last part. A thread of its own reads it."""
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    came: queue.SimpleQueue[bytes | BaseException | None] = queue.SimpleQueue()

    def read() -> None:
        item: bytes | BaseException | None
        try:
            while (item := answer.next()) is not None:
                came.put(item)
                if not ready.is_set():  # the event loop clears it before it looks
                    loop.call_soon_threadsafe(ready.set)
        except BaseException as error:
            item = error
        came.put(item)
        with contextlib.suppress(RuntimeError):  # the event loop is closed
            loop.call_soon_threadsafe(ready.set)

    thread = threading.Thread(target=read, name="spac-stream", daemon=True)
    before = threading.stack_size(_STACK_BYTES)
    try:
        thread.start()
    except RuntimeError:  # no address space for it: each part then asks for a stack of its own
        threading.stack_size(before)
        thread.start()
    finally:
        threading.stack_size(before)
    while True:
        await ready.wait()
        ready.clear()
        parts: list[bytes] = []
        while not came.empty():
            item = came.get()
            if not isinstance(item, bytes):
                if parts:
                    yield b"".join(parts)
                if item is not None:
                    raise item
                return
            parts.append(item)
        if parts:
            yield b"".join(parts)


async def _send(send: Send, status: int, body: Any, fields: list[tuple[bytes, bytes]] | None = None) -> int:
    """Send a whole answer, and return its status."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    fields = fields or [(b"content-type", b"application/json")]
    length = (b"content-length", str(len(data)).encode())
    await send({"type": "http.response.start", "status": status, "headers": [*fields, length]})
    await send({"type": "http.response.body", "body": data, "more_body": False})
    return status

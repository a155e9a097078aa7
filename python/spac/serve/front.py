"""The ASGI app in front of llama.cpp's handlers: it checks who may ask, and they answer.

Bodies, answers and streams pass unchanged. llama.cpp knows the forms of OpenAI, Anthropic and llama-server.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import queue
import threading
import time
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, quote

from starlette.concurrency import run_in_threadpool
from starlette.routing import Router

from spac.errors import InputError
from spac.serve.admin import VRAM, change_memory
from spac.serve.answer import Answer, Send
from spac.serve.checks import TextLimits, check_tokens, checked, formed, parsed, with_images
from spac.serve.connections import Bodies, Body, Receive
from spac.serve.custom_tools import ChatCalls
from spac.serve.echo import Echo
from spac.serve.forms import CHAT, COMPLETIONS, MESSAGES, RESPONSES
from spac.serve.page import page_routes
from spac.serve.page.live import LiveFeed, slot_row
from spac.serve.refusal import GONE, MessageErrors, Refusal, refusal_of
from spac.serve.request_queue import Full, RequestQueue, full
from spac.serve.responses import ResponseForm
from spac.serve.routes import ANSWERS, COUNTS, POLLED, READS, SHORT, TOOLS
from spac.serve.state import Scope, ServerState

if TYPE_CHECKING:
    from spac import _core
    from spac.engine import Engine

LARGE = 1 << 20
"""The bytes from which on a body counts as large."""
HEAVY = (b'"grammar"', b'schema"', b'"tools"')
"""Words of bodies that may have a grammar or a schema, whose check takes up to seconds."""


class LoopRequest:
    """A request that runs or waits; `ServerState` cancels it when the server stops."""

    def __init__(self) -> None:
        self.waits = True
        """True until the request is admitted."""
        self.cancelled = False
        """True once the request was cancelled."""
        self.rewrites: ResponseForm | ChatCalls | Echo | MessageErrors | None = None
        """The object that changes the answer on its way to the client, or None."""
        self._admission: asyncio.Future[None] | None = None
        self._answer: _core.LoopResponse | None = None

    def begin(self, answer: _core.LoopResponse) -> None:
        """Note the answer, which `cancel` ends."""
        self.waits, self._answer = False, answer
        if self.cancelled:
            answer.cancel()

    def cancel(self) -> None:
        """End the request. Call this in the event loop's thread."""
        self.cancelled = True
        if self._admission is not None:
            self._admission.cancel()
        if self._answer is not None:
            self._answer.cancel()

    async def enter(self, requests: RequestQueue) -> None:
        """Wait until the queue admits the request. Raise Refusal if it is cancelled, or Full."""
        self._admission = asyncio.ensure_future(requests.enter())
        try:
            await self._admission
        except asyncio.CancelledError:
            if not self.cancelled:
                raise
            raise Refusal(GONE, "the client left") from None
        finally:
            self._admission = None

    async def watch(self, receive: Receive) -> None:
        """Cancel the request when its client leaves."""
        while (await receive())["type"] != "http.disconnect":
            pass
        self.cancel()


PAUSES_S, WORK_SHARE = (0.1, 2.0), 0.1
"""The shortest and the longest pause before a heavy request is refused, and its work's share of the time.

A client that asks again at once would else keep the cores from others.
"""


class Refused(Exception):  # noqa: N818  (an answer, not a fault)
    """A refusal of llama.cpp's handlers, which is sent after a pause."""

    def __init__(self, body: bytes, fields: list[tuple[bytes, bytes]], pause_s: float) -> None:
        super().__init__("refused")
        self.body, self.fields, self.pause_s = body, fields, pause_s


def pause_s(body: bytes, took_s: float) -> float:
    """Return the seconds before a request is refused, by the time of its work; 0 if it is not heavy."""
    return min(max(took_s / WORK_SHARE, PAUSES_S[0]), PAUSES_S[1]) if _is_heavy(body) else 0.0


def _is_heavy(body: bytes) -> bool:
    """Return True for a body whose checks can keep a core busy."""
    return len(body) > LARGE or any(word in body for word in HEAVY)


class Front:
    """The ASGI app in front of an engine's `loop`."""

    def __init__(
        self,
        engine: Engine,
        state: ServerState,
        *,
        has_page: bool = False,
        fetches: bool = False,
        is_markdown: bool = True,
    ) -> None:
        """Stand in front of the engine's loop.

        `has_page` offers the page at /, which shows answers as Markdown if they are. `fetches` fetches images
        at http and https addresses.
        """
        self._engine, self._loop, self._state = engine, engine.loop, state
        self._feed = LiveFeed(engine, answers=self._answers if engine.n_sequences > 1 else None)
        self._fetches = fetches
        self._limits = TextLimits(engine)
        self._bodies, self._heavy = Bodies(), asyncio.Semaphore(1)
        self._page = Router(page_routes(self._feed, is_markdown)) if has_page else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        began = time.monotonic()
        path = SHORT.get(scope["path"], str(scope["path"]))
        answer = Answer(send, path)
        try:
            self._state.admit(path, scope)
            with self._bodies.one() as body:
                status = await self._answer(path, scope, receive, answer, body)
        except Exception as error:
            await asyncio.sleep(getattr(error, "pause_s", 0.0))
            status = 400 if isinstance(error, Refused) else refusal_of(error).status
            with contextlib.suppress(Refusal):  # the client takes nothing
                if isinstance(error, Refused):
                    await answer.whole(status, error.body, error.fields)
                else:
                    await answer.refuse(refusal_of(error))
        seconds = time.monotonic() - began
        known = path in ANSWERS
        self._state.metrics.requests.labels(path if known else "other", str(status)).inc()
        if known:
            self._state.metrics.seconds.observe(seconds)
        if path not in POLLED and not (path.startswith("/page/") and status < 400):
            now = time.strftime("%H:%M:%S")
            self._state.log(f"{now} {scope['method']} {quote(scope['path'])} {status}: {seconds:.2f} s")

    async def _answer(self, path: str, scope: Scope, receive: Receive, out: Answer, sent: Body) -> int:
        """Answer a request, and return the status."""
        if self._page is not None and (path == "/" or path.startswith("/page/")):
            await self._page(scope, receive, out.send)
            return 200
        reads = scope["method"] in ("GET", "HEAD")
        body = b"" if reads else await sent.read(receive)
        if path == VRAM and not reads:
            return await out.whole(200, await run_in_threadpool(change_memory, self._engine, parsed(body)))
        params = dict(parse_qsl(scope.get("query_string", b"").decode("latin-1")))
        if reads and path.startswith("/v1/models/"):
            return await self._send_model(path.removeprefix("/v1/models/"), out)
        if reads and path == "/metrics":
            return await self._send_metrics(params, out)
        route = (READS if reads else {**ANSWERS, **TOOLS}).get(path)
        if route is None and path.startswith("/slots/") and not reads:
            route, params["id_slot"] = "slot", path.removeprefix("/slots/")
        if route is None:
            known = path in READS or path in ANSWERS or path in TOOLS or path == VRAM
            raise Refusal(405 if known else 404, f"{scope['method']} {path}: no such route")
        request = LoopRequest()
        request.rewrites = MessageErrors() if path.startswith(MESSAGES) else None
        if path in ANSWERS:
            if path == RESPONSES:
                request.rewrites = ResponseForm(await self._apart(body, parsed, body))
            elif path == CHAT and b'"custom"' in body:
                request.rewrites = ChatCalls(await self._apart(body, parsed, body))
            elif path == COMPLETIONS and b'"echo"' in body:
                request.rewrites = await self._apart(body, self._echo, body)
            names = self._state.models if self._state.strict_model else None
            body = await self._apart(body, checked, path, body, self._limits, names)
            if self._fetches:
                body = await self._apart(body, with_images, body)
        elif path in COUNTS:
            body = await self._apart(body, formed, path, body)
        elif path == "/detokenize":
            await self._apart(body, check_tokens, body, self._limits.model)
        self._state.requests.add(request)
        watch = asyncio.create_task(request.watch(receive))
        try:
            if path not in ANSWERS:
                return await self._run(request, route, body, params, out, self._alone(body))
            return await self._queued(request, route, body, params, out)
        finally:
            watch.cancel()
            self._state.requests.discard(request)

    def _alone(self, body: bytes) -> contextlib.AbstractAsyncContextManager[object]:
        """Return what lets one request at a time be worked on, of those that can keep a core busy."""
        return self._heavy if _is_heavy(body) else contextlib.nullcontext()

    async def _apart(self, body: bytes, work: Callable[..., Any], *arguments: Any) -> Any:
        """Do work on a request in a thread, and return its result."""
        async with self._alone(body):
            began = time.monotonic()
            try:
                return await run_in_threadpool(work, *arguments)
            except (InputError, Refusal) as error:
                error.pause_s = pause_s(body, time.monotonic() - began)  # type: ignore[union-attr]
                raise

    def _echo(self, body: bytes) -> Echo | None:
        """Return what repeats the prompt of a completion, if it asks for that."""
        request = parsed(body)
        return Echo(request, self._engine) if request.get("echo") else None

    async def _queued(
        self, request: LoopRequest, route: str, body: bytes, params: dict[str, str], out: Answer
    ) -> int:
        """Answer a request that uses a slot, when the queue admits it."""
        requests, came = self._state.queue, time.monotonic()
        try:
            await request.enter(requests)
        except Full:
            raise full(requests) from None
        except Refusal:
            self._state.check_open()
            raise
        self._state.metrics.queued.observe(time.monotonic() - came)
        self._feed.begin()
        try:
            return await self._run(request, route, body, params, out)
        finally:
            self._feed.end()
            requests.leave()

    async def _run(
        self,
        request: LoopRequest,
        route: str,
        body: bytes,
        params: dict[str, str],
        out: Answer,
        lock: contextlib.AbstractAsyncContextManager[object] | None = None,
    ) -> int:
        """Let llama.cpp's handler answer, under a `lock` if it has to work alone, and send what it says."""
        if request.cancelled:
            raise Refusal(GONE, "the client left")
        if isinstance(request.rewrites, Echo):
            await run_in_threadpool(request.rewrites.prepare, lambda: request.cancelled)
        answer = self._loop.begin(route, body, params)
        request.begin(answer)
        try:
            async with lock or contextlib.nullcontext():  # which ends before a slow client gets the answer
                began = time.monotonic()
                await run_in_threadpool(answer.run)
            if request.cancelled:
                raise Refusal(GONE, "the client left")
            fields = _fields_of(answer)
            if not answer.is_stream:
                whole = answer.body
                if request.rewrites is not None:
                    whole = request.rewrites.whole(whole)
                if answer.status == 400:
                    raise Refused(whole, fields, pause_s(body, time.monotonic() - began))
                return await out.whole(answer.status, whole, fields)
            start = {"type": "http.response.start", "status": answer.status, "headers": fields + _STREAM}
            await out.send(start)
            async for part in _parts(answer):
                part = part.replace(_NOTHING, b"")
                told = request.rewrites.part(part) if request.rewrites is not None and part else part
                await out.send({"type": "http.response.body", "body": told, "more_body": True})
            await out.send({"type": "http.response.body", "body": b"", "more_body": False})
            return GONE if request.cancelled else answer.status
        finally:
            answer.cancel()
            await run_in_threadpool(answer.close)

    async def _send_model(self, name: str, out: Answer) -> int:
        """Send what /v1/models says of one model."""
        if name not in self._state.models:
            raise Refusal(404, f"the model '{name}' is not served here: {', '.join(self._state.models)} is")
        answer = self._loop.begin("v1/models", b"", {})
        try:
            await run_in_threadpool(answer.run)
            return await out.whole(200, json.loads(answer.body)["data"][0])
        finally:
            await run_in_threadpool(answer.close)

    async def _send_metrics(self, params: dict[str, str], out: Answer) -> int:
        """Send the metrics of the front, and then those of llama.cpp's server."""
        answer = self._loop.begin("metrics", b"", params)
        try:
            await run_in_threadpool(answer.run)
            text = self._state.metrics.text() + (answer.body if answer.status == 200 else b"")
            return await out.whole(200, text, [*_fields_of(answer)[1:], _TEXT])
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
            running = [slot_row(slot) for slot in await run_in_threadpool(read) if slot["is_processing"]]
        except InputError:  # the loop is closed
            running = []
        return {"running": len(running), "waiting": self._state.queue.n_waiting, "sequences": running}


_TEXT = (b"content-type", b"text/plain; version=0.0.4; charset=utf-8")
_NOTHING = b"data: null\n\n"
"""The event with which llama.cpp begins the stream of several prompts. Clients cannot read it."""
_STREAM = [(b"cache-control", b"no-store"), (b"x-accel-buffering", b"no")]


def _fields_of(answer: _core.LoopResponse) -> list[tuple[bytes, bytes]]:
    """Return the header fields of an answer, the body's type first."""
    fields = {"content-type": answer.content_type, **answer.headers}
    return [(name.lower().encode(), value.encode()) for name, value in fields.items()]


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

"""The middleware in front of llama-cpp-python's app: the key, checks, the queue, and clients that leave.

The app itself answers some bad requests with a traceback and status 500. It sends a stream's status before it
knows that there will be a stream. It continues to generate for clients that have left.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any
from urllib.parse import quote

from starlette.concurrency import run_in_threadpool

from spac.serve import embeddings, native
from spac.serve.checks import REQUESTS, checked
from spac.serve.doors import DOORS, refusal_body, refusal_event, translated
from spac.serve.refusal import GONE, Refusal, refusal_of
from spac.serve.request_context import REQUEST_CONTEXT, RequestContext
from spac.serve.request_queue import Full, full
from spac.serve.state import OPEN_TO_ALL, Scope, ServerState
from spac.stats import RunStats, ratio

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

SERVED = {*REQUESTS, *DOORS, *embeddings.PATHS, native.PATH}
"""The paths of requests that use the model."""
ALIASES = {
    "/chat/completions": "/v1/chat/completions",
    "/responses": "/v1/responses",
    "/models": "/v1/models",
    "/completions": native.PATH,
    "/embeddings": "/embedding",
}
"""llama-server's other paths of endpoints."""
MAX_BODY = 32 << 20
STALL_S = 60.0
"""Seconds after which a client that receives nothing counts as gone, because others wait for the model."""
TELL_S = 1.0
"""Seconds between two comments on a prompt's progress."""
STREAM_FIELDS = [
    (b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]  # fmt: skip
POLLED = {*OPEN_TO_ALL, "/metrics"}
"""Paths that monitors ask for every few seconds. The log leaves them out."""


class RequestMiddleware:
    """The innermost ASGI middleware, which checks, queues and runs each request."""

    def __init__(self, app: App, *, state: ServerState) -> None:
        self._app, self._state = app, state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request: refuse it, or run it when its turn comes."""
        if scope["type"] != "http" or scope["method"] == "OPTIONS":
            await self._app(scope, receive, send)
            return
        began, asked = time.monotonic(), scope
        path = ALIASES.get(scope["path"], str(scope["path"]))
        scope = {**scope, "path": path, "raw_path": path.encode()}
        answer = Answer(send, path)
        try:
            self._state.admit(path, scope)
            if path in SERVED and scope["method"] == "POST":
                await self._serve(path, scope, receive, answer)
            else:
                await self._app(scope, receive, answer.send)
                await answer.end()
        except Exception as error:
            refusal = refusal_of(error)
            if refusal.status == GONE:
                answer.status = GONE  # the client has left
            else:
                await answer.refuse(refusal)
        finally:
            metrics, known, seconds = self._state.metrics, path in SERVED, time.monotonic() - began
            metrics.requests.labels(path if known else "other", str(answer.status)).inc()
            if known:
                metrics.seconds.observe(seconds)
            if path not in POLLED:
                self._state.log(_log_line(asked, answer, seconds))

    async def _serve(self, path: str, scope: Scope, receive: Receive, answer: Answer) -> None:
        known, raw, original = translated(path, await read_body(receive))
        models = self._state.models if self._state.strict_model else None
        request, body = checked(known, raw, models, self._state.defaults)
        context = RequestContext(request, original)
        answer.runs = context.runs
        watch = asyncio.create_task(_watch(receive, context))
        self._state.requests.add(context)
        try:
            if not await self._turn(context):
                self._state.check_open()
                answer.status = GONE
                return
            context.waits = False
            try:
                await self._run(context, scope, body, answer)
            finally:
                await run_in_threadpool(context.finish)
                self._state.queue.leave()
        finally:
            self._state.requests.discard(context)
            watch.cancel()
            if context.cancelled and not answer.complete:
                answer.status = GONE

    async def _turn(self, context: RequestContext) -> bool:
        """Wait for the request's turn; return False if its client leaves before.

        Raises Refusal if the queue is full.
        """
        queue, began = self._state.queue, time.monotonic()
        turn = asyncio.create_task(queue.turn())
        left = asyncio.create_task(context.left.wait())
        try:
            await asyncio.wait({turn, left}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            left.cancel()
            if not turn.done():
                turn.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            try:
                await turn
                self._state.metrics.queued.observe(time.monotonic() - began)
                return True
            except Full:
                raise full(queue) from None
        return False

    async def _run(self, context: RequestContext, scope: Scope, body: bytes, answer: Answer) -> None:
        own = {b"content-length": str(len(body)).encode(), b"content-type": b"application/json"}
        others = [(name, value) for name, value in scope["headers"] if name not in own]
        scope = {**scope, "headers": [*others, *own.items()]}
        messages = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> Message:
            if messages:
                return messages.pop()
            await context.left.wait()
            return {"type": "http.disconnect"}

        token = REQUEST_CONTEXT.set(context)
        teller = (
            asyncio.create_task(self._tell(answer, context))
            if (context.original or {}).get("stream")
            else None
        )
        try:
            await self._app(scope, receive, answer.send)
        finally:
            REQUEST_CONTEXT.reset(token)
            if teller is not None:
                teller.cancel()
        await answer.end()

    async def _tell(self, answer: Answer, context: RequestContext) -> None:
        """Tell a client of a stream how far its prompt is, if the prompt takes long."""
        while not answer.begun:
            await asyncio.sleep(TELL_S)
            reads = self._state.metrics.reading if context.run is None else context.run.reading.now
            if (reading := reads()) is not None and reading.is_long:
                await answer.comment(f"prompt {reading.done}/{reading.total} tokens{reading.left}")


def _log_line(scope: Scope, answer: Answer, seconds: float) -> str:
    """Return the log's line for a finished request."""
    line = f"{time.strftime('%H:%M:%S')} {scope['method']} {quote(scope['path'])} {answer.status}"
    if runs := answer.runs:
        n_in, n_out = sum(run.prompt_tokens for run in runs), sum(run.generated_tokens for run in runs)
        rate = ratio(n_out, sum(run.decode_s for run in runs)) or 0.0
        return f"{line}: {n_in} tokens in, {n_out} out, {seconds:.2f} s, {rate:.1f} tokens/s"
    return f"{line}: {seconds:.2f} s"


class Answer:
    """Sends a response to the client.

    It holds back the response's beginning until the body begins, and the end until the app is done. So it can
    still report a fault that happens in the meantime.
    """

    def __init__(self, send: Send, path: str) -> None:
        """Create an answer; `path` selects the form of refusals."""
        self._out, self._path = send, path
        self._held: list[Message] = []
        self._started = False
        self._streams = False
        self.status = 500
        """The response's HTTP status."""
        self.runs: Sequence[RunStats] = ()
        """The statistics of the generations for this answer."""
        self.begun = False
        """True once a part of the app's body has been sent."""
        self._commented = False  # a comment has begun the stream, and the app's own beginning is dropped
        self._failed: bytearray | None = None  # the body of a refusal by the app, after a comment
        self._sending = asyncio.Lock()
        self.complete = False
        """True once all of the response has been sent."""

    async def send(self, message: Message) -> None:
        """Send a message of the app, or hold it back."""
        async with self._sending:
            await self._take(message)

    async def _take(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            if self._commented:
                self._failed = bytearray() if self.status >= 400 else None
                return
            fields = dict(message.get("headers", ()))
            self._streams = fields.get(b"content-type", b"").startswith(b"text/event-stream")
            self._held.append(message)
        elif self._failed is not None:
            self._failed += message.get("body", b"")
        elif not message.get("more_body") or not message.get("body"):
            self._held.append(message)
        else:
            await self._release()
            self.begun = True
            await self._send(message)

    async def comment(self, text: str) -> None:
        """Send a comment line of a stream, unless the answer has begun. The status is 200 from then on."""
        async with self._sending:
            if self.begun or (self._held and not (self._streams and self.status == 200)):
                return
            await self._release()
            if not self._started:
                self._started = self._streams = self._commented = True
                self.status = 200
                await self._send({"type": "http.response.start", "status": 200, "headers": STREAM_FIELDS})
            await self._send(
                {"type": "http.response.body", "body": f": {text}\n\n".encode(), "more_body": True}
            )

    async def end(self) -> None:
        """Send what was held back, when the app is done."""
        if self._failed is not None:
            await self.refuse(Refusal(self.status, json.loads(self._failed)["error"]["message"]))
        await self._release()

    async def refuse(self, refusal: Refusal) -> None:
        """Send a refusal in place of the response, or as an event if a stream has begun."""
        if self._started:
            if self._streams:
                event = refusal_event(self._path, refusal)
                await self._send({"type": "http.response.body", "body": event, "more_body": True})
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})
            return
        self.status, self._held = refusal.status, []
        body = json.dumps(refusal_body(self._path, refusal)).encode()
        start = {"type": "http.response.start", "status": refusal.status, "headers": refusal.fields()}
        await self._send(start)
        await self._send({"type": "http.response.body", "body": body, "more_body": False})

    async def _send(self, message: Message) -> None:
        try:
            async with asyncio.timeout(STALL_S):
                await self._out(message)
        except TimeoutError:
            raise Refusal(GONE, "the client takes nothing") from None
        self.complete = message["type"] == "http.response.body" and not message.get("more_body")

    async def _release(self) -> None:
        while self._held:
            self._started = True
            await self._send(self._held.pop(0))


async def read_body(receive: Receive) -> bytes:
    """Return the request's body; raise Refusal if it is too large, or if its client left."""
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Refusal(GONE, "the client left")
        body += message.get("body", b"")
        if len(body) > MAX_BODY:
            raise Refusal(413, f"the body has more than {MAX_BODY >> 20} MB")
        if not message.get("more_body"):
            return bytes(body)


async def _watch(receive: Receive, context: RequestContext) -> None:
    """Cancel the request when its client leaves."""
    while (await receive())["type"] != "http.disconnect":
        pass
    context.cancel()

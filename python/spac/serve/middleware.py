"""The middleware in front of llama-cpp-python's app: the key, checks, the queue, and clients that leave.

The app itself answers some bad requests with a traceback and status 500. It sends a stream's status before it
knows that there will be a stream. It continues to generate for clients that have left.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import ipaddress
import json
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from starlette.concurrency import run_in_threadpool

from spac.serve import embeddings, native
from spac.serve.admin import ADMIN, check_peer
from spac.serve.checks import REQUESTS, checked
from spac.serve.doors import DOORS, refusal_body, refusal_event, translated
from spac.serve.metrics import Metrics
from spac.serve.refusal import GONE, Refusal, refusal_of
from spac.serve.request_context import REQUEST_CONTEXT, RequestContext
from spac.serve.request_queue import Full, RequestQueue
from spac.stats import RunStats, ratio

if TYPE_CHECKING:
    from spac.engine.prompt_progress import Reading

Scope = MutableMapping[str, Any]
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
CONCLUDE_S = 5.0
"""Seconds in which concluded requests can end. A step of a large model may take one."""
OPEN_TO_ALL = {"/health", "/v1/health"}
POLLED = {*OPEN_TO_ALL, "/metrics"}
"""Paths that monitors ask for every few seconds. The log leaves them out."""
LOOPBACK = {"localhost", "127.0.0.1", "::1"}


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
                raise Refusal(
                    429,
                    f"{queue.n_waiting} requests are waiting, and no more may: try again later",
                    code="queue_full",
                    retry_after_s=queue.retry_after_s(),
                ) from None
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
        teller = asyncio.create_task(self._tell(answer)) if (context.original or {}).get("stream") else None
        try:
            await self._app(scope, receive, answer.send)
        finally:
            REQUEST_CONTEXT.reset(token)
            if teller is not None:
                teller.cancel()
        await answer.end()

    async def _tell(self, answer: Answer) -> None:
        """Tell a client of a stream how far its prompt is, if the prompt takes long."""
        while not answer.begun:
            await asyncio.sleep(TELL_S)
            if (reading := self._state.reading()) is not None and reading.is_long:
                await answer.comment(f"prompt {reading.done}/{reading.total} tokens{reading.left}")


def _log_line(scope: Scope, answer: Answer, seconds: float) -> str:
    """Return the log's line for a finished request."""
    line = f"{time.strftime('%H:%M:%S')} {scope['method']} {quote(scope['path'])} {answer.status}"
    if runs := answer.runs:
        n_in, n_out = sum(run.prompt_tokens for run in runs), sum(run.generated_tokens for run in runs)
        rate = ratio(n_out, sum(run.decode_s for run in runs)) or 0.0
        return f"{line}: {n_in} tokens in, {n_out} out, {seconds:.2f} s, {rate:.1f} tokens/s"
    return f"{line}: {seconds:.2f} s"


def _host_of(origin: str) -> str | None:
    try:
        return urlsplit(origin).hostname
    except ValueError:
        return None


def _is_own(origin: str, host: str) -> bool:
    """Return True for this server's own page at an IP address; others can let a name lead to this address."""
    try:
        ipaddress.ip_address(_host_of(origin) or "")
    except ValueError:
        return False
    return origin == f"http://{host}"


class ServerState:
    """The state that middleware and routes share: queue, metrics, model names, key, running requests."""

    def __init__(
        self,
        queue: RequestQueue,
        metrics: Metrics,
        models: tuple[str, ...],
        api_key: str,
        defaults: Mapping[str, Any] | None = None,
        page: Collection[str] = (),
    ) -> None:
        """Create the state.

        `defaults` apply where a request gives no value; `page` has the paths of the page's files.
        """
        self.queue, self.metrics, self.models, self.defaults = queue, metrics, models, defaults or {}
        self.requests: set[RequestContext] = set()
        self._open = {*OPEN_TO_ALL, *page}
        self.strict_model = False
        """True to refuse requests that name another model."""
        self.meta: Mapping[str, Any] = {}
        """The figures of the model that /v1/models gives."""
        self.props: Mapping[str, Any] = {}
        """The answer of /props."""
        self.reading: Callable[[], Reading | None] = lambda: None
        """The function that returns the progress of the prompt that is being read."""
        self.log: Callable[[str], None] = lambda _line: None
        """The function that writes a line of the request log."""
        self._key = api_key.encode()
        self._closing = False

    def admit(self, path: str, scope: Scope) -> None:
        """Raise Refusal if the key is wrong or the server is about to stop.

        Without a key, pages of other machines are refused, because browsers let any page send requests here.
        Requests that change the engine are then refused from other machines.
        """
        self.check_open()
        headers = dict(scope["headers"])
        if path in self._open:
            return
        if not self._key:
            if path.startswith(ADMIN):
                check_peer(scope.get("client"))
            origin = headers.get(b"origin", b"").decode("latin-1")
            own = _is_own(origin, headers.get(b"host", b"").decode("latin-1"))
            if origin and not own and _host_of(origin) not in LOOPBACK:
                raise Refusal(403, f"a page of {origin} needs an API key: start the server with --api-key")
            return
        scheme, _, key = headers.get(b"authorization", b"").partition(b" ")
        keys = [key.strip() if scheme.lower() == b"bearer" else b"", headers.get(b"x-api-key", b"")]
        if not any(hmac.compare_digest(each, self._key) for each in keys):
            raise Refusal(401, "the API key is missing or wrong", code="invalid_api_key")

    def check_open(self) -> None:
        """Raise Refusal if the server is about to stop."""
        if self._closing:
            raise Refusal(503, "the server is stopping")

    @property
    def draining(self) -> bool:
        """True once no more requests are admitted."""
        return self._closing

    def drain(self) -> None:
        """Admit no more requests, and refuse those that wait; call this in the event loop's thread."""
        self._closing = True
        for context in list(self.requests):
            if context.waits:
                context.cancel()

    async def drained(self, seconds: float) -> None:
        """Wait until no request runs; after some seconds, conclude those that run, and wait again."""
        for limit_s in (seconds, CONCLUDE_S):
            end = time.monotonic() + limit_s
            while self.requests and time.monotonic() < end:
                await asyncio.sleep(0.05)
            for context in self.requests:
                context.concluded = True

    def close(self) -> None:
        """Cancel all requests that run or wait, and admit no more; call this in the event loop's thread."""
        self._closing = True
        for context in list(self.requests):
            context.cancel()


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
            await asyncio.wait_for(self._out(message), STALL_S)
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

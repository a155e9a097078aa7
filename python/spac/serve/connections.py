"""Limits of connections and bodies, which uvicorn does not have: their number, size and time."""

from __future__ import annotations

import asyncio
import contextlib
import resource
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Self

from spac.serve.refusal import GONE, Refusal

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]

HEAD_S = 20.0
"""The most seconds from a connection, or from the first byte of a further request, to the end of its head."""
BODY_S = 60.0
"""The most seconds between two parts of a body."""
SPARE = 128
"""The open files of the process that are not connections."""
MOST = 4096
"""The most connections at a time."""
MAX_BODY = 32 << 20
"""The most bytes of a request's body."""
MAX_BODIES = 256 << 20
"""The most bytes of the bodies of all requests that are not answered yet."""


def most_connections() -> int:
    """Return how many connections may be open at a time, and raise a low limit of open files for them.

    Without a free file, the event loop could take no connection, and would say so without end.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST + SPARE
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST if soft == resource.RLIM_INFINITY else max(1, min(MOST, soft - SPARE))


def guarded(most: int) -> type[asyncio.Protocol]:
    """Return uvicorn's protocol, which closes a connection beyond `most`, and one whose head is late."""
    from uvicorn.protocols.http.auto import AutoHTTPProtocol

    class Guarded(AutoHTTPProtocol):  # type: ignore[misc]
        _late: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            if len(self.connections) > most:
                transport.abort()
            else:
                self._follow()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._follow()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop()
            super().connection_lost(exc)

        def _follow(self) -> None:
            """Begin to wait for a head, or end it once a request is there."""
            if self.cycle is not None and not self.cycle.response_complete:
                self._stop()
            elif self._late is None:
                self._late = self.loop.call_later(HEAD_S, self.transport.close)

        def _stop(self) -> None:
            if self._late is not None:
                self._late.cancel()
                self._late = None

    return Guarded


class Bodies:
    """The bodies of all requests that are not answered yet."""

    def __init__(self) -> None:
        self.n_bytes = 0
        """Their bytes."""

    def one(self) -> Body:
        """Return the body of a new request."""
        return Body(self)


class Body:
    """The body of one request, which counts until its block ends."""

    def __init__(self, all_of_them: Bodies) -> None:
        self._all, self._n = all_of_them, 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._all.n_bytes -= self._n

    async def read(self, receive: Receive) -> bytes:
        """Return the body. Raise Refusal if it is too large or too slow, or if its client left."""
        body = bytearray()
        while True:
            try:
                async with asyncio.timeout(BODY_S):
                    message = await receive()
            except TimeoutError:
                raise Refusal(408, f"the body's next part took more than {BODY_S:.0f} s") from None
            if message["type"] == "http.disconnect":
                raise Refusal(GONE, "the client left")
            part = message.get("body", b"")
            body += part
            self._n += len(part)
            self._all.n_bytes += len(part)
            if len(body) > MAX_BODY:
                raise Refusal(413, f"the body has more than {MAX_BODY >> 20} MB")
            if self._all.n_bytes > MAX_BODIES:
                what = f"the requests that wait have {MAX_BODIES >> 20} MB already: try again later"
                raise Refusal(503, what, retry_after_s=5)
            if not message.get("more_body"):
                return bytes(body)

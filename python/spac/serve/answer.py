"""A response on its way to the client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from spac.serve.connections import Message
from spac.serve.refusal import GONE, Refusal

Send = Callable[[Message], Awaitable[None]]

JSON = (b"content-type", b"application/json")
STALL_S = 60.0
"""Seconds after which a client that takes nothing counts as gone, because others wait for the model."""


class Answer:
    """A response on its way to the client."""

    def __init__(self, send: Send, path: str) -> None:
        """Create an answer; `path` selects the form of refusals."""
        self._out, self._path = send, path
        self.started = False
        """True once a part of the response has been sent."""
        self.complete = False
        """True once all of the response has been sent."""

    async def send(self, message: Message) -> None:
        """Send a message. Raise Refusal if the client takes nothing for a minute."""
        self.started = True
        try:
            async with asyncio.timeout(STALL_S):
                await self._out(message)
        except TimeoutError:
            raise Refusal(GONE, "the client takes nothing") from None
        self.complete = message["type"] == "http.response.body" and not message.get("more_body")

    async def whole(self, status: int, body: Any, fields: Sequence[tuple[bytes, bytes]] = (JSON,)) -> int:
        """Send a whole response, bytes or what JSON can hold, and return its status."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        length = (b"content-length", str(len(data)).encode())
        await self.send({"type": "http.response.start", "status": status, "headers": [*fields, length]})
        await self.send({"type": "http.response.body", "body": data, "more_body": False})
        return status

    async def refuse(self, refusal: Refusal) -> None:
        """Send a refusal in place of the response, or as an event of a stream that has begun."""
        body = refusal.body(self._path)
        if refusal.status == GONE or self.complete:
            return
        if not self.started:
            await self.whole(refusal.status, body, refusal.fields())
            return
        event = b"data: " + json.dumps(body).encode() + b"\n\n"
        await self.send({"type": "http.response.body", "body": event, "more_body": False})

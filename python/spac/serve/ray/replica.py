"""A replica of Ray Serve: one engine behind spac's server application, without a socket of its own."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

from spac.cli.program import Talk
from spac.errors import SpacError

REFUSED = "spac refuses: "
"""The mark of a line for the user in the text of Ray's error."""


@dataclass(frozen=True)
class Ask:
    """A request on its way to a replica."""

    scope: MutableMapping[str, Any]
    """The part of the ASGI scope that the server application reads."""
    body: bytes
    text: str
    """The prompt's text, by which the router chooses the replica."""


class Replica:
    """Holds an engine, and answers requests with it."""

    def __init__(self, arguments: Sequence[str], api_key: str) -> None:
        """Load the model; the arguments are those of `spac serve`.

        Raise RuntimeError with a line that begins with REFUSED, if the model cannot be loaded.
        """
        from spac.serve.app import make_parser, ready

        options = make_parser().parse_args([*arguments, "--no-page"])
        options.api_key = api_key
        self._stack = contextlib.ExitStack()
        try:
            self._app, self._state = ready(options, Talk(options.quiet), self._stack)
        except SpacError as error:
            raise RuntimeError(f"{REFUSED}{error}") from None

    async def answer(self, ask: Ask) -> AsyncIterator[list[MutableMapping[str, Any]]]:
        """Yield the ASGI messages of the response, as many at a time as there are.

        The client counts as gone when the caller cancels the call, or closes the generator.
        """
        out: asyncio.Queue[MutableMapping[str, Any] | None] = asyncio.Queue()
        left = asyncio.Event()
        parts: list[MutableMapping[str, Any]] = [
            {"type": "http.request", "body": ask.body, "more_body": False}
        ]

        async def receive() -> MutableMapping[str, Any]:
            if parts:
                return parts.pop()
            await left.wait()
            return {"type": "http.disconnect"}

        async def run() -> None:
            try:
                await self._app({**ask.scope, "app": self._app}, receive, out.put)
            finally:
                out.put_nowait(None)

        task = asyncio.create_task(run())
        try:
            ended = False
            while not ended:
                messages = [await out.get()]
                while not out.empty():
                    messages.append(out.get_nowait())
                ended = messages[-1] is None
                if found := [each for each in messages if each is not None]:
                    yield found
            await task
        finally:
            left.set()

    def close(self) -> None:
        """Cancel what runs, and free the engine."""
        self._state.close()
        self._stack.close()

    __del__ = close

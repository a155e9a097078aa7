"""A thread of its own for a stream that the event loop sends."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import AsyncIterator, Generator
from typing import Generic, TypeVar

from spac.serve.request_context import RequestContext

AHEAD = 64
"""The number of items that may wait for the event loop; then the stream waits."""

T = TypeVar("T")


class StreamThread(Generic[T]):
    """Runs a stream on one thread from its beginning to its end.

    The event loop takes all items at once that have come since it last looked. So a step of the model waits
    for no client, and a busy event loop sends several items together. It is woken when no further token is at
    hand, and at the latest before the thread waits for a step.
    """

    def __init__(self, stream: Generator[T, None, None], context: RequestContext) -> None:
        """Start the thread, which ends with the request at the latest. Call this in the event loop."""
        self._stream, self._context, self._loop = stream, context, asyncio.get_running_loop()
        self._items: list[T] = []
        self._error: BaseException | None = None
        self._over = self._closed = self._woken = False
        self._changed = threading.Condition()
        self._ready = asyncio.Event()
        context.on_one_thread, context.wake = True, self._wake
        context.at_end(self._close)
        run = contextvars.copy_context().run
        self._thread = threading.Thread(target=run, args=(self._run,), name="spac-stream", daemon=True)
        self._thread.start()

    async def items(self) -> AsyncIterator[list[T]]:
        """Yield the items that have come, at least one each time; raise what the stream raises."""
        over = False
        while not over:
            await self._ready.wait()
            self._ready.clear()
            with self._changed:
                items, self._items, self._woken = self._items, [], False
                over = self._over
                self._changed.notify()
            if items:
                yield items
        if (error := self._error) is not None:
            self._error = None
            try:
                raise error
            finally:
                del error  # its frames would refer to it

    def _run(self) -> None:
        try:
            with contextlib.closing(self._stream):
                for item in self._stream:
                    if not self._put(item):
                        break
        except BaseException as error:
            self._error = error
        with self._changed:
            self._over = True
        self._signal()

    def _put(self, item: T) -> bool:
        """Add an item as soon as there is room. Return False if nobody takes items any more."""
        with self._changed:
            while len(self._items) >= AHEAD and not self._closed:
                if not self._woken:
                    self._signal()
                self._changed.wait()
            if self._closed:
                return False
            self._items.append(item)
        if not self._context.has_more:
            self._wake()
        return True

    def _wake(self) -> None:
        """Wake the event loop if there are items for which it was not woken."""
        with self._changed:
            wakes = bool(self._items) and not self._woken
            self._woken = self._woken or wakes
        if wakes:
            self._signal()

    def _signal(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._ready.set)

    def _close(self) -> None:
        """End the stream, and wait for the thread."""
        with self._changed:
            self._closed = True
            over = self._over
            self._changed.notify()
        if not over:
            self._context.stop()
        self._thread.join()

"""The context of one request, which all tasks and threads that work for it share."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any


class RequestContext:
    """Tells if the client is still there, and stops the work when it is not."""

    def __init__(self, request: Mapping[str, Any], original: Mapping[str, Any] | None = None) -> None:
        self.request = request
        """What was asked, as `checks.checked` leaves it."""
        self.original = original or request
        """The same in the words of the interface in which it was asked (`doors`)."""
        self.left = asyncio.Event()
        """Set when nobody waits for the answer any more. For the event loop."""
        self._lock = threading.RLock()  # a signal's handler may cancel while its thread does
        self._cancelled = False
        self._stop: Callable[[], None] | None = None
        self._at_end: list[Callable[[], None]] = []

    @property
    def cancelled(self) -> bool:
        """The same, for any thread."""
        return self._cancelled

    def cancel(self) -> None:
        """Nobody waits any more: stop what runs. From the event loop's thread."""
        self.left.set()
        with self._lock:
            self._cancelled = True
            if self._stop is not None:
                self._stop()

    def at_end(self, call: Callable[[], None]) -> None:
        """What to call when the request is over, before the next one's turn."""
        self._at_end.append(call)

    def finish(self) -> None:
        """The request is over."""
        while self._at_end:
            self._at_end.pop()()

    def running(self, stop: Callable[[], None] | None) -> None:
        """What to call on `cancel` from now on; None when nothing runs any more."""
        with self._lock:
            self._stop = stop


REQUEST_CONTEXT: ContextVar[RequestContext] = ContextVar("REQUEST_CONTEXT")
"""Of the request that this task, or the thread that works for it, serves."""

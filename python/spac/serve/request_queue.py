"""The request queue: one request is served, and others wait for their turn in their order of arrival."""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque


class Full(Exception):  # noqa: N818  (a state, not a fault)
    """Raised if the request queue has no free place."""


class RequestQueue:
    """Admits one request at a time, while at most `limit` others wait. It belongs to one event loop."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._busy = False
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._mean_s = 1.0  # mean seconds to serve a request; recent requests weigh most
        self._since = 0.0

    @property
    def n_waiting(self) -> int:
        """The number of requests that wait."""
        return len(self._waiting)

    @property
    def busy(self) -> bool:
        """True while a request is served."""
        return self._busy

    async def turn(self) -> None:
        """Wait for the caller's turn; the caller then has to call `leave`.

        Raises Full if the queue has no free place. The wait may be cancelled.
        """
        if self._busy:
            if len(self._waiting) >= self.limit:
                raise Full
            mine = asyncio.get_running_loop().create_future()
            self._waiting.append(mine)
            try:
                await mine
            except asyncio.CancelledError:
                if mine.done() and not mine.cancelled():
                    self._next()  # the turn came at the same moment
                else:
                    self._waiting.remove(mine)
                raise
        self._busy = True
        self._since = time.monotonic()

    def leave(self) -> None:
        """End the caller's turn, and begin the next one's."""
        self._mean_s += (time.monotonic() - self._since - self._mean_s) / 4
        self._next()

    def _next(self) -> None:
        if self._waiting:
            self._waiting.popleft().set_result(None)  # the queue stays busy: no request comes in between
        else:
            self._busy = False

    def retry_after_s(self) -> int:
        """Return the seconds after which a place may be free, from the mean time of past requests."""
        return max(1, min(600, math.ceil(self._mean_s)))

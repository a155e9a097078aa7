"""The queue: one request is served, and others wait for their turn in the order in which they came."""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque


class Full(Exception):  # noqa: N818  (a state, not a fault)
    """As many wait as may."""


class RequestQueue:
    """Lets in one request at a time, and at most `limit` wait. It belongs to one event loop."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._busy = False
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._mean_s = 1.0  # that a request is served, the last ones weighing most
        self._since = 0.0

    @property
    def n_waiting(self) -> int:
        return len(self._waiting)

    @property
    def busy(self) -> bool:
        """Whether somebody is served."""
        return self._busy

    async def turn(self) -> None:
        """Returns when it is the caller's turn, which then has to `leave`. Raises Full. May be cancelled."""
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
        """The caller has been served."""
        self._mean_s += (time.monotonic() - self._since - self._mean_s) / 4
        self._next()

    def _next(self) -> None:
        if self._waiting:
            self._waiting.popleft().set_result(None)  # still busy: nobody may come in between
        else:
            self._busy = False

    def retry_after_s(self) -> int:
        """Seconds after which there may be a place, as far as the past tells."""
        return max(1, min(600, math.ceil(self._mean_s)))

"""The request queue: some requests are served, and others wait in their order of arrival."""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque

from spac.serve.refusal import Refusal


class Full(Exception):  # noqa: N818  (a state, not a fault)
    """Raised if the request queue has no free place."""


def full(queue: RequestQueue) -> Refusal:
    """Return the refusal of a request for which the queue has no free place."""
    text = f"{queue.n_waiting} requests are waiting, and no more may: try again later"
    return Refusal(429, text, retry_after_s=queue.retry_after_s())


class RequestQueue:
    """Admits `places` requests at a time, while at most `limit` others wait. It belongs to one event loop."""

    def __init__(self, limit: int, places: int = 1) -> None:
        self.limit, self.places = limit, places
        self.n_served = 0
        """The number of requests that are served."""
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._mean_s = 1.0  # mean seconds to serve a request; recent requests weigh most
        self._began: deque[float] = deque()  # of those that are served, in seconds

    @property
    def n_waiting(self) -> int:
        """The number of requests that wait."""
        return len(self._waiting)

    async def enter(self) -> None:
        """Wait until the caller is admitted; it then has to call `leave`.

        Raises Full if the queue has no free place. The wait may be cancelled.
        """
        if self.n_served >= self.places:
            if len(self._waiting) >= self.limit:
                raise Full
            mine = asyncio.get_running_loop().create_future()
            self._waiting.append(mine)
            try:
                await mine
            except asyncio.CancelledError:
                if mine.done() and not mine.cancelled():
                    self._next()  # it was admitted at the same moment
                else:
                    self._waiting.remove(mine)
                raise
        else:
            self.n_served += 1
        self._began.append(time.monotonic())

    def leave(self) -> None:
        """End the caller's stay, and admit the next one."""
        # It is another's beginning if they end in another order; the mean is the same.
        self._mean_s += (time.monotonic() - self._began.popleft() - self._mean_s) / 4
        self._next()

    def _next(self) -> None:
        if self._waiting:
            self._waiting.popleft().set_result(None)  # the place stays taken: no request comes in between
        else:
            self.n_served -= 1

    def retry_after_s(self) -> int:
        """Return the seconds after which a place may be free, from the mean time of past requests."""
        return max(1, min(600, math.ceil(self._mean_s / self.places)))

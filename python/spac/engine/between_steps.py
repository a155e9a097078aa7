"""Work that must not run while a session computes, such as changing the number of slots."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, TypeVar

from spac import _core
from spac.errors import InputError

T = TypeVar("T")


class BetweenSteps:
    """Runs work between the calls of a session.

    A thread that computes step after step would seldom let another thread get a lock. So it runs the work of
    other threads itself, after each call.
    """

    def __init__(self, after: Callable[[], object] = lambda: None) -> None:
        """Begin without a call. `after` runs at the end of each call and of all work that waited for it."""
        self._after = after
        self._condition = threading.Condition()
        self._owner: int | None = None  # the thread that computes or works
        self._n_calls = 0  # calls that wait for the owner; work queues behind them
        self._waiting: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self._closed = False

    def close(self, last: Callable[[], T]) -> T:
        """Run `last` as `run` does. From then on, `call` and `run` raise InputError; `close` does not.

        Raise InputError in a callback of the session, whose call would go on afterwards.
        """
        if self._owner == threading.get_ident():
            raise InputError(
                "the engine cannot be closed in a callback of its own session: close it afterwards"
            )

        def work() -> T:
            self._closed = True
            return last()

        return self._run(work)

    def _check_open(self) -> None:
        if self._closed:
            raise InputError("the engine is closed")

    @contextmanager
    def call(self) -> Iterator[None]:
        """Mark a call of the session. Work that comes meanwhile runs at its end, on this thread.

        Raise InputError after `close`.
        """
        me = threading.get_ident()
        if self._owner == me:  # a callback of the session
            yield
            return
        with self._condition:
            self._n_calls += 1
            try:
                self._condition.wait_for(lambda: self._owner is None)
            finally:
                self._n_calls -= 1
            self._owner = me
        try:
            self._check_open()
            yield
        finally:
            self._leave()

    def run(self, work: Callable[[], T]) -> T:
        """Run `work` as soon as no call is under way, and return its result or raise its exception.

        Any thread may call this. In a callback of the session, the work runs at once. Raise InputError after
        `close`.
        """

        def checked() -> T:
            self._check_open()
            return work()

        return self._run(checked)

    def _run(self, work: Callable[[], T]) -> T:
        me = threading.get_ident()
        if self._owner == me:
            return work()
        future: Future[T] = Future()
        with self._condition:
            waits = self._owner is not None or self._n_calls > 0
            if waits:
                self._waiting.append((work, future))
            else:
                self._owner = me
        if waits:
            return future.result()
        try:
            return work()
        finally:
            self._leave()

    def _leave(self) -> None:
        try:
            self._work()
            self._after()
        finally:
            while not self._release():
                self._work()

    def _release(self) -> bool:
        """Let other threads call the session, unless their work waits. Return True if none does."""
        with self._condition:
            if self._waiting:
                return False
            self._owner = None
            self._condition.notify_all()
            return True

    def _work(self) -> None:
        while self._waiting:
            work, future = self._waiting.popleft()
            try:
                future.set_result(work())
            except BaseException as error:  # It belongs to the thread that waits for the result.
                future.set_exception(error)


class BetweenDecodes(BetweenSteps):
    """Runs work while llama.cpp's loop does not compute, on the threads that have it."""

    def __init__(self, after: Callable[[], object] = lambda: None) -> None:
        """Begin without a loop. `after` runs at the end of all work. A loop calls it after its steps."""
        super().__init__(after)
        self.gate = _core.Gate()
        """The gate that the loop has to have."""

    def _run(self, work: Callable[[], T]) -> T:
        if self.gate.is_mine:
            return work()
        with self.gate:
            try:
                return work()
            finally:
                self._after()

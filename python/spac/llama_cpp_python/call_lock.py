"""One call at a time: what several threads ask of a `spac.Llama` is done one after the other."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from spac.errors import InputError

IDLE_S = 60.0
"""Seconds without a read after which a stream ends if another thread waits for the model."""

_LOOK_S = 1.0  # seconds between looks at how long nobody has read a stream


class CallLock:
    """Lets one thread at a time use a model; others wait.

    A stream that was begun and not read to its end is a call too: other threads wait for its end. The thread
    that reads it may make further calls in between, and another thread may go on reading it. A stream that is
    kept and not read for `IDLE_S` is ended if another thread waits.
    """

    def __init__(self) -> None:
        """Begin without a call."""
        self._condition = threading.Condition()  # with an RLock: the collector may close a stream anywhere
        self._thread: int | None = None  # the thread that works
        self._depth = 0  # its calls that are nested
        self._open: list[_Work] = []  # the streams that were begun and have not ended

    @contextmanager
    def call(self) -> Iterator[None]:
        """Hold the model; wait for other threads' calls and streams before."""
        self.enter(None)
        try:
            yield
        finally:
            self.leave()

    def enter(self, stream: _Work | None) -> None:
        """Wait until this thread may work: on `stream`, or on a call of its own."""
        me, idle = threading.get_ident(), list[_Work]()
        with self._condition:
            while not self._may_work(me, stream):
                if self._thread is None and all(each.is_idle for each in self._open):
                    idle, self._open = self._open, []
                    break
                self._condition.wait(_LOOK_S)
            self._thread = me
            self._depth += 1
        for each in reversed(idle):
            each.give_up()

    def leave(self) -> None:
        """Let other threads work, at the end of the outermost call."""
        with self._condition:
            self._depth -= 1
            if not self._depth:
                self._thread = None
                self._condition.notify_all()

    def opened(self, stream: _Work) -> None:
        """Record that a stream was begun. This thread works."""
        self._open.append(stream)

    def ended(self, stream: _Work) -> None:
        """Record that a stream has ended. This thread works."""
        with suppress(ValueError):
            self._open.remove(stream)

    def _may_work(self, me: int, stream: _Work | None) -> bool:
        if self._thread is not None:
            return self._thread == me
        return stream in self._open or all(each.thread == me for each in self._open)


@dataclass(eq=False)
class _Work:
    """Holds what is known of a stream without the stream itself, so that one that is dropped ends."""

    made: Iterator[Any]
    thread: int  # the thread that asked for an item last
    read_at: float
    begun: bool = False
    over: bool = False
    given_up: bool = False

    @property
    def is_idle(self) -> bool:
        """True if nobody has asked for an item for `IDLE_S`."""
        return time.monotonic() - self.read_at >= IDLE_S

    def give_up(self) -> None:
        """End the stream for another thread, which works. Its reader gets InputError."""
        self.given_up = self.over = True
        with suppress(Exception):  # It would belong to the reader.
            self.close()

    def close(self) -> None:
        """Close the iterator."""
        if (close := getattr(self.made, "close", None)) is not None:
            close()


class Stream(Generator[Any, Any, None]):
    """A generator that works under a `CallLock`, from its first item to its last one."""

    def __init__(self, lock: CallLock, made: Iterator[Any]) -> None:
        """Take over the iterator `made`. Nothing is held before the first item is asked for."""
        self._lock, self._work = lock, _Work(made, threading.get_ident(), time.monotonic())

    def send(self, value: Any) -> Any:
        """Return the next item, as a generator's `send` does."""
        made = self._work.made
        return self._step(lambda: next(made) if value is None else made.send(value))  # type: ignore[attr-defined]

    def throw(
        self, kind: Any, value: BaseException | object = None, trace: TracebackType | None = None
    ) -> Any:
        """Raise an exception where the generator waits, as a generator's `throw` does."""
        error: Any = kind if value is None else value
        made = self._work.made
        if not self._work.begun or not isinstance(made, Generator):
            self.close()
            raise error
        return self._step(lambda: made.throw(error))

    def _step(self, work: Callable[[], Any]) -> Any:
        state = self._work
        self._lock.enter(state)
        try:
            if state.given_up:
                state.given_up = False
                raise InputError(
                    f"the stream was not read for {IDLE_S:.0f} s, and another thread waited for the model"
                )
            if state.over:
                raise StopIteration
            if not state.begun:
                state.begun = True
                self._lock.opened(state)
            return work()
        except BaseException:
            state.over = True
            self._lock.ended(state)
            raise
        finally:
            state.thread, state.read_at = threading.get_ident(), time.monotonic()
            self._lock.leave()

    def close(self) -> None:
        """End the stream. A second call does nothing."""
        state = self._work
        if state.over:
            return
        state.over = True
        if not state.begun:
            state.close()
            return
        self._lock.enter(state)
        try:
            state.close()
        finally:
            self._lock.ended(state)
            self._lock.leave()

    def __del__(self) -> None:
        self.close()

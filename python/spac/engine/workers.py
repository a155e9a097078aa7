"""Threads that show the scheduler drafts and verified steps while the next ones are computed.

The Expert Lookahead Buffer is built "on the CPU in a non-blocking manner while the GPU is computing the next
draft token" (MoE-SpeQ, section 3.3.1). The thread that decodes leaves what the draft's routers chose, and
goes on. The plan in force is the newest one that is finished.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Condition, Thread
from typing import Generic, TypeVar

T = TypeVar("T")


class DraftWorker(Generic[T]):
    """Calls a function on a thread with the newest of the values that it is shown.

    A value that comes while the function runs replaces one that waits. All methods are for the thread that
    decodes.
    """

    thread_name = "spac-draft-worker"

    def __init__(self, follow: Callable[[T], None]) -> None:
        """Start the thread. follow: the function that gets the values."""
        self._follow = follow
        self._changed = Condition()
        self._next: T | None = None
        self._failure: Exception | None = None
        self._stopped = self._busy = False
        self._thread = Thread(target=self._run, name=self.thread_name, daemon=True)
        self._thread.start()

    def show(self, value: T) -> None:
        """Leave a value. Raise what an earlier call of the function raised."""
        with self._changed:
            if self._failure is not None:
                raise self._failure
            self._next = value
            self._changed.notify_all()

    def drop(self) -> None:
        """Drop a value that waits. A call of the function may still run."""
        with self._changed:
            self._next = None

    def close(self) -> None:
        """End the thread, and drop a value that waits."""
        with self._changed:
            self._stopped, self._next = True, None
            self._changed.notify_all()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._stopped or self._next is not None)
                if self._stopped:
                    return
                value, self._next = self._next, None
                self._busy = True
            assert value is not None  # what wait_for waited for
            failure = None
            try:
                self._follow(value)
            except Exception as error:
                failure = error
            with self._changed:
                self._busy, self._failure = False, failure or self._failure
                self._changed.notify_all()


class StepWorker(DraftWorker[T]):
    """Calls a function on a thread with every value that it is shown, one after the other.

    `show` and `close` are for the thread that decodes, and the others for any thread.
    """

    thread_name = "spac-step-worker"

    def show(self, value: T) -> None:
        """Leave a value, after the function has returned from the one before.

        Raise what an earlier call of the function raised.
        """
        self.wait()
        super().show(value)

    def wait(self) -> None:
        """Wait until the function has returned from the last value. Raise what it raised, once."""
        self.drain()
        with self._changed:
            failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def drain(self) -> None:
        """Wait until the function has returned from the last value."""
        with self._changed:
            self._changed.wait_for(lambda: self._stopped or (self._next is None and not self._busy))

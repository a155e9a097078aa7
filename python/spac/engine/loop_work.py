"""Work that must not run while the loop computes, such as changing the number of slots."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeVar

from spac import _core
from spac.errors import InputError

T = TypeVar("T")


class LoopWork:
    """Runs work while llama.cpp's loop does not compute, on the threads that have it."""

    def __init__(self, after: Callable[[], object] = lambda: None) -> None:
        """Begin without a loop. `after` runs at the end of all work. A loop calls it after its steps."""
        self._after, self._closed, self._process = after, False, os.getpid()
        self.lock = _core.LoopLock()
        """The lock that the loop has to hold."""

    @property
    def is_home(self) -> bool:
        """False in a child of the process that loaded the engine. It has none of the engine's threads."""
        return os.getpid() == self._process

    def close(self, last: Callable[[], T]) -> T:
        """Run `last` as `run` does. From then on, `run` raises InputError; `close` does not."""

        def work() -> T:
            self._closed = True
            return last()

        return self._run(work)

    def run(self, work: Callable[[], T]) -> T:
        """Run `work` as soon as nothing is computed, and return its result or raise its exception.

        Any thread may call this. In a callback of the loop, the work runs at once. Raise InputError after
        `close`.
        """

        def checked() -> T:
            if self._closed:
                raise InputError("the engine is closed")
            return work()

        if not self.is_home:
            raise InputError(
                "the engine was made in another process, before a fork: load the model anew in this one"
            )

        return self._run(checked)

    def _run(self, work: Callable[[], T]) -> T:
        if self.lock.is_mine:
            return work()
        with self.lock:
            try:
                return work()
            finally:
                self._after()

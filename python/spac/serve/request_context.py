"""The context of one request, which all tasks and threads that work for it share."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Collection, Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spac.llama_cpp_python.generation import TokenRun
    from spac.stats import RunStats


class RequestContext:
    """Holds one request, and stops its work when the client has left."""

    def __init__(self, request: Mapping[str, Any], original: Mapping[str, Any] | None = None) -> None:
        self.request = request
        """The request in the form that `checks.checked` returns."""
        self.original = original or request
        """The request in the form of its own interface (`doors`)."""
        self.runs: list[RunStats] = []
        """The statistics of the generations so far."""
        self.left = asyncio.Event()
        """An event that is set when the request is cancelled. Only the event loop's tasks use it."""
        self.preserved: Collection[int] = ()
        """The control tokens that are text in the answer (`Llama.preserve_tokens`)."""
        self.run: TokenRun | None = None
        """The last generation, unless llama_cpp's own loop makes it."""
        self.wake: Callable[[], None] | None = None
        """A function that wakes the event loop for items of the answer that it does not know of, or None."""
        self.waits = True
        """True until the request's turn comes."""
        self.on_one_thread = False
        """True if one thread makes the answer's whole stream, and closes it."""
        self.concluded = False
        """True once the answer has to end with what there is; its reason is then "length"."""
        self._lock = threading.RLock()  # reentrant: a signal's handler may cancel while its thread holds it
        self._cancelled = False
        self._stop: Callable[[], None] | None = None
        self._at_end: list[Callable[[], None]] = []

    @property
    def cancelled(self) -> bool:
        """True once the request is cancelled; any thread may read it."""
        return self._cancelled

    @property
    def ends(self) -> bool:
        """True once the generation has to end; any thread may read it."""
        return self._cancelled or self.concluded

    @property
    def has_more(self) -> bool:
        """True if the next token of the answer is made already; its thread may read this."""
        return self.run is not None and self.run.n_fresh > 0

    def cancel(self) -> None:
        """Stop the request's work, because its answer is not needed; call this in the event loop's thread."""
        self.left.set()
        self.stop()

    def stop(self) -> None:
        """Stop the request's work; any thread may call this."""
        with self._lock:
            self._cancelled = True
            if self._stop is not None:
                self._stop()

    def at_end(self, call: Callable[[], None]) -> None:
        """Register a call for the request's end, which comes before the next request's turn."""
        self._at_end.append(call)

    def finish(self) -> None:
        """Make the calls that `at_end` registered, the last one first."""
        while self._at_end:
            self._at_end.pop()()

    def running(self, stop: Callable[[], None] | None) -> None:
        """Set the call that `cancel` makes from now on; None if nothing runs any more."""
        with self._lock:
            self._stop = stop


REQUEST_CONTEXT: ContextVar[RequestContext] = ContextVar("REQUEST_CONTEXT")
"""The context of the request that the current task, or a thread that works for it, serves."""

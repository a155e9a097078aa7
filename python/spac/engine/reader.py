"""The reader of a generation, as other threads see it that wait for the session."""

from __future__ import annotations

import threading
import time

IDLE_S = 60.0
"""Seconds without a read after which a generation ends if another one waits for its place."""

_LOOK_S = 1.0  # seconds between looks at how long nobody has read


class Reader:
    """Records which thread reads a generation, and when it last did."""

    def __init__(self) -> None:
        """Begin with a read by this thread."""
        self.ended = threading.Event()
        """Set when the generation ends or is dropped."""
        self._thread, self._read_at, self._reads = threading.get_ident(), time.monotonic(), True
        self.pause()

    def begin(self) -> None:
        """Record that this thread begins to read."""
        self._thread, self._reads = threading.get_ident(), True

    def pause(self) -> None:
        """Record that the read is over."""
        self._read_at, self._reads = time.monotonic(), False

    def wait(self) -> None:
        """Wait until the generation ends, is dropped, or was not read for `IDLE_S`.

        Return at once if this thread was the last to read it.
        """
        while self._thread != threading.get_ident() and not self.ended.is_set():
            if not self._reads and time.monotonic() - self._read_at >= IDLE_S:
                return
            self.ended.wait(_LOOK_S)

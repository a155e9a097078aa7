"""Handling of Ctrl-C: the first one asks the work to stop, the second one ends the process."""

from __future__ import annotations

import os
import select
import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Self

EXIT_CODE = 130
_PATIENCE_S = 0.05
TWICE_S = 0.5
"""Seconds within which a second signal counts as the first one. Some programs send each signal twice."""
_STUCK_S = 3.0  # seconds after which work that was asked to stop will not do it any more


def leave() -> None:
    """End the process at once, as Ctrl-C does where there is nothing to end in order."""
    os._exit(EXIT_CODE)


def leave_at_once() -> None:
    """Make Ctrl-C end the process at once, until a program handles it. No exception can be lost or shown."""
    signal.signal(signal.SIGINT, lambda *_: leave())


def end_at_second_signal(*numbers: int, after_s: float = TWICE_S, has_come: bool = False) -> None:
    """Let a second of these signals end the process by its default action, after `after_s` seconds or more.

    Their handlers get the first one. With `has_come`, it comes now. The second needs no Python that runs. Set
    no other handler afterwards.
    """
    from spac import _core  # late: it loads the library

    for number in numbers:
        _core.end_at_second_signal(number, after_s, has_come)


class Interrupt:
    """Handles Ctrl-C while it is entered: the first one calls the function that `cancel` returns, at once.

    Python runs signal handlers between its own instructions only, and one graph of a large model can take
    seconds. So a thread wakes up when the signal arrives. The thread or the handler, whichever comes first,
    calls the function once. If `cancel` returns None, the handler raises KeyboardInterrupt. The second Ctrl-C
    ends the process. Unless `insistent`, it does so only if the work has not stopped for seconds.
    """

    def __init__(self, cancel: Callable[[], Callable[[], None] | None], *, insistent: bool = True) -> None:
        self._cancel, self._insistent = cancel, insistent
        self._asked, self._lock = False, threading.RLock()
        self._watcher = threading.Thread(target=self._watch, name="spac-interrupt", daemon=True)

    def __enter__(self) -> Self:
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        self._handler = signal.signal(signal.SIGINT, self._on_signal)
        end_at_second_signal(signal.SIGINT, after_s=TWICE_S if self._insistent else _STUCK_S)
        self._wakeup = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        self._watcher.start()
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _value: BaseException | None, _trace: TracebackType | None
    ) -> None:
        signal.set_wakeup_fd(self._wakeup)
        os.close(self._write)
        self._watcher.join()
        os.close(self._read)
        signal.signal(signal.SIGINT, self._handler)

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        if not self._ask():
            raise KeyboardInterrupt

    def _ask(self) -> bool:
        """Return True if the running work has been asked to stop, now or before.

        `cancel` is called each time: since the signal, the work may have ended and other work may have begun.
        """
        with self._lock:
            if not self._asked and (cancel := self._cancel()) is not None:
                self._asked = True
                cancel()
            return self._asked

    def _watch(self) -> None:
        presses = 0
        while True:
            # A callback of the library may swallow KeyboardInterrupt. Then the next work is asked to stop.
            while presses and not self._asked and not select.select([self._read], [], [], _PATIENCE_S)[0]:
                self._ask()
            if not (data := os.read(self._read, 16)):
                return
            presses += data.count(signal.SIGINT)
            if presses > 1 and self._insistent:
                os._exit(EXIT_CODE)
            if presses:
                self._ask()

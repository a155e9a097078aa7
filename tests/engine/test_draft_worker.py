"""The thread that follows drafts gets the newest value, never delays the caller, and hands on what fails."""

from __future__ import annotations

from queue import Queue
from threading import Event, get_ident

import pytest

from spac.engine.workers import DraftWorker


def test_the_newest_value_replaces_one_that_waits():
    seen: Queue = Queue()
    may_end = Event()

    def follow(value: int) -> None:
        seen.put((value, get_ident()))
        may_end.wait(30)

    worker = DraftWorker(follow)
    worker.show(1)
    value, thread = seen.get(timeout=30)
    assert (value, thread != get_ident()) == (1, True)
    worker.show(2)
    worker.show(3)  # returns, though the function still runs
    may_end.set()
    assert seen.get(timeout=30)[0] == 3
    may_end.clear()
    worker.show(4)
    assert seen.get(timeout=30)[0] == 4
    worker.show(5)
    worker.drop()
    may_end.set()
    worker.close()
    assert seen.empty(), "what was dropped is not followed"


def test_what_fails_reaches_the_caller():
    failed = Event()

    def follow(_value: int) -> None:
        failed.set()
        raise ValueError("a fault of the scheduler")

    worker = DraftWorker(follow)
    worker.show(1)
    assert failed.wait(30)
    worker.close()  # the thread has noted the failure then
    with pytest.raises(ValueError, match="a fault of the scheduler"):
        worker.show(2)

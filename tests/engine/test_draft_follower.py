"""The thread that follows drafts gets the newest value, never delays the caller, and hands on what fails."""

from __future__ import annotations

from queue import Queue
from threading import Event, get_ident

import pytest

from spac.engine.followers import DraftFollower


def test_the_newest_value_replaces_one_that_waits():
    seen: Queue = Queue()
    may_end = Event()

    def follow(value: int) -> None:
        seen.put((value, get_ident()))
        may_end.wait(30)

    follower = DraftFollower(follow)
    follower.show(1)
    value, thread = seen.get(timeout=30)
    assert (value, thread != get_ident()) == (1, True)
    follower.show(2)
    follower.show(3)  # returns, though the function still runs
    may_end.set()
    assert seen.get(timeout=30)[0] == 3
    follower.close()
    assert seen.empty()


def test_a_value_that_is_dropped_is_not_followed():
    seen: Queue = Queue()
    may_end = Event()

    def follow(value: int) -> None:
        seen.put(value)
        may_end.wait(30)

    follower = DraftFollower(follow)
    follower.show(1)
    assert seen.get(timeout=30) == 1
    follower.show(2)
    follower.drop()
    may_end.set()
    follower.close()
    assert seen.empty()


def test_what_fails_reaches_the_caller():
    failed = Event()

    def follow(_value: int) -> None:
        failed.set()
        raise ValueError("a fault of the scheduler")

    follower = DraftFollower(follow)
    follower.show(1)
    assert failed.wait(30)
    follower.close()  # the thread has noted the failure then
    with pytest.raises(ValueError, match="a fault of the scheduler"):
        follower.show(2)

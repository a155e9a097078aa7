"""Ctrl-C asks running work to stop. It asks once, whichever thread notices it first."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from spac.cli.interrupt import Interrupt


@pytest.fixture
def work() -> list[Callable[[], None]]:
    """Return the list whose function stops what runs; it is empty while nothing runs."""
    return []


@pytest.fixture
def entered(work: list[Callable[[], None]]) -> Interrupt:
    return Interrupt(lambda: work[0] if work else None)


def press() -> None:
    os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize("_", range(40))
def test_what_runs_is_asked_once_and_then_over(
    _: int, work: list[Callable[[], None]], entered: Interrupt
) -> None:
    asked: list[float] = []

    def stop() -> None:
        asked.append(time.monotonic())
        work.clear()  # nothing runs any more when the other thread looks

    work.append(stop)
    with entered:
        press()
        time.sleep(0.002)
    assert len(asked) == 1


def test_what_has_ended_when_the_watcher_looks_was_asked(
    monkeypatch: pytest.MonkeyPatch, work: list[Callable[[], None]], entered: Interrupt
) -> None:
    asked: list[str] = []
    work.append(lambda: asked.append("first"))
    read = os.read

    def late(file: int, n: int) -> bytes:
        data = read(file, n)
        time.sleep(0.05 if data else 0)
        return data

    monkeypatch.setattr("spac.cli.interrupt.os.read", late)
    with entered:
        press()
        work.clear()  # the work ends, and nothing runs for a moment
        time.sleep(0.1)
    assert asked == ["first"]


def test_what_begins_is_asked_where_the_exception_was_swallowed(
    work: list[Callable[[], None]], entered: Interrupt
) -> None:
    asked: list[str] = []
    with entered:
        with contextlib.suppress(KeyboardInterrupt):  # a library may swallow it so in a callback
            press()
        time.sleep(0.2)
        work.append(lambda: asked.append("begun"))
        time.sleep(0.3)
    assert asked == ["begun"]


def test_where_nothing_runs_it_is_raised(entered: Interrupt) -> None:
    def pressed() -> None:
        with entered:
            press()
            time.sleep(0.5)

    with pytest.raises(KeyboardInterrupt):
        pressed()


def test_little_is_imported_before_ctrl_c_is_handled() -> None:
    code = "import sys, spac.cli; sys.exit('numpy' in sys.modules or 'spac.config' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_leaving_ends_a_call_that_python_does_not_interrupt() -> None:
    code = """
import ctypes, os, signal, threading
from spac.cli import interrupt
with interrupt.Interrupt(lambda: interrupt.leave):
    threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
    ctypes.PyDLL(None).usleep(900_000)  # It keeps the interpreter's lock.
    ctypes.CDLL(None).sleep(20)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=15)
    assert (done.returncode, done.stderr) == (130, b"")


STUCK = """
import ctypes, signal, sys
from spac.cli import interrupt
{prepare}
print("ready", flush=True)
mutex = ctypes.create_string_buffer(64)
for _ in range(2):  # The second call keeps the interpreter's lock for ever, so no handler in Python runs.
    ctypes.PyDLL(None).pthread_mutex_lock(mutex)
"""
HANDLED = """
for each in (signal.SIGINT, signal.SIGTERM):
    signal.signal(each, lambda *_: None)
interrupt.end_at_second_signal(signal.SIGINT, signal.SIGTERM)
"""
ENTERED = """
interrupt._STUCK_S = 0.8
interrupt.Interrupt(lambda: lambda: None, insistent={}).__enter__()
"""


@pytest.mark.parametrize(("prepare", "numbers", "wait_s"), [
    (HANDLED, (signal.SIGTERM, signal.SIGTERM), 0.6), (HANDLED, (signal.SIGTERM, signal.SIGINT), 0.6),
    (ENTERED.format(True), (signal.SIGINT, signal.SIGINT), 0.6),
    (ENTERED.format(False), (signal.SIGINT, signal.SIGINT), 0.9),
])  # fmt: skip
def test_a_second_signal_ends_what_runs_no_python(
    prepare: str, numbers: tuple[signal.Signals, signal.Signals], wait_s: float
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", STUCK.format(prepare=prepare)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(0.3)
        process.send_signal(numbers[0])
        time.sleep(0.1)
        process.send_signal(numbers[0])  # so soon, it counts as the first one
        time.sleep(wait_s)
        assert process.poll() is None
        process.send_signal(numbers[1])
        assert process.wait(10) == -numbers[1]
    finally:
        process.kill()
        process.communicate()

"""Run a server program: start it, measure its processes' memory, keep its last output, end it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path

POLL_S = 0.5  # seconds between two looks at the processes' memory
STOP_S = 10  # seconds for a server to end after SIGTERM
LAST_LINES = 3


class PeerError(Exception):
    """A peer has no result. The message gives the reason in one line."""


def free_port() -> int:
    """Return a port on which nobody listens."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


class Server:
    """A program that runs in a session of its own until `close`. Its output goes to a log."""

    def __init__(self, words: Sequence[str], log: Path) -> None:
        """Start the program. Raise PeerError where it cannot be started."""
        self._log = log
        try:
            with log.open("wb") as out:
                self._process = subprocess.Popen(
                    words, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
                )
        except OSError as error:
            raise PeerError(f"{words[0]} cannot be started: {error.strerror}") from None
        self._peak_ram = 0
        self._done = threading.Event()
        self._meter = threading.Thread(target=self._poll, daemon=True)
        self._meter.start()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def peak_ram(self) -> int:
        """Return the peak memory of all its processes together in bytes, with the pages of mapped files.

        Memory that processes share counts once for each of them.
        """
        self._peak_ram = max(self._peak_ram, sum(map(_peak_of, self._members())))
        return self._peak_ram

    @property
    def last_lines(self) -> str:
        """Return the end of its output."""
        lines = [line.strip() for line in self._log.read_text(errors="replace").splitlines()]
        return " / ".join([line for line in lines if line][-LAST_LINES:])[-300:] or "no output"

    def check(self, patience_s: float = 0) -> None:
        """Raise PeerError if the program has ended. Wait up to `patience_s` for its end."""
        try:
            status = self._process.wait(patience_s)
        except subprocess.TimeoutExpired:
            return
        raise PeerError(f"ended with status {status}: {self.last_lines}")

    def close(self) -> None:
        """End all its processes: with SIGTERM first, and with SIGKILL after some time."""
        self._done.set()
        self._meter.join()
        for number in (signal.SIGTERM, signal.SIGKILL):
            for pid in self._members():
                try:
                    os.kill(pid, number)
                except ProcessLookupError:
                    continue
            end = time.monotonic() + STOP_S
            while self._members() and time.monotonic() < end:
                time.sleep(0.02)
        self._process.wait()

    def _poll(self) -> None:
        while not self._done.wait(POLL_S):
            _ = self.peak_ram

    def _members(self) -> list[int]:
        """Return the processes of its session, without those that have ended and wait for their parent."""
        self._process.poll()
        return [pid for pid in map(int, filter(str.isdecimal, os.listdir("/proc"))) if self._has(pid)]

    def _has(self, pid: int) -> bool:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return False
        state, session = fields[0], int(fields[3])
        return session == self._process.pid and state != "Z"


def _peak_of(pid: int) -> int:
    """Return the most bytes of a process that were in memory, 0 where it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM:")), 0)

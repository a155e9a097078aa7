"""Run processes that may crash or hang, and servers, with the standard library alone."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CAUSES = re.compile(r"error|ASSERT|abort|spac: |Error|illegal|status \d{3}")
"""Texts of a line that explains a crash. The first such line names the cause, later ones its effects."""
NOISE = re.compile(r"no error|errors? = 0|ERROR SUMMARY: 0|error_|0 errors|_error")
TOOK_TOO_LONG = "not done within"
POLL_S = 0.5  # seconds between two looks at the memory of a server's processes
STOP_S = 10  # seconds for a server to end after SIGTERM
LAST_LINES = 3


def environment(reference: Path | None) -> dict[str, str]:
    """Return the environment of a process that runs the unpatched library of this folder; None: spac's own.

    CUDA's libraries may be Python packages. spac finds them by itself, the unpatched library needs their
    folders.
    """
    folders = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")]), str(ROOT / "python")]
    found = {**os.environ, "PYTHONPATH": os.pathsep.join(folders)}
    found.pop("LLAMA_CPP_LIB_PATH", None)
    if reference is not None:
        packages = [str(each) for folder in sys.path for each in Path(folder or ".").glob("nvidia/*/lib")]
        paths = [path for path in (found.get("LD_LIBRARY_PATH", ""), *packages) if path]
        found |= {"LLAMA_CPP_LIB_PATH": str(reference), "LD_LIBRARY_PATH": os.pathsep.join(paths)}
    return found


@dataclass(frozen=True)
class Ended:
    """The end of a process. `fault` is empty when it ended well, else one line that names the failure."""

    code: int | None  # None: it was killed, because it was not done in time
    fault: str
    output: str


def cause(output: str) -> str:
    """Return the first line that explains a failure, or the last line of all."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    causes = [line for line in lines if CAUSES.search(line) and not NOISE.search(line)]
    return (causes or lines[-1:] or ["no output"])[0][:300]


def run(words: Sequence[object], log: Path, seconds: float, env: Mapping[str, str] | None = None) -> Ended:
    """Run a command in the tree. Its output is in `log`, with the Python stacks of a crash or a hang."""
    log.parent.mkdir(parents=True, exist_ok=True)
    more = {**(os.environ if env is None else env), "PYTHONFAULTHANDLER": "1"}
    with log.open("w") as file:
        process = subprocess.Popen(
            list(map(str, words)), cwd=ROOT, env=more, stdout=file, stderr=file, process_group=0
        )
        code: int | None = None
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGABRT)  # faulthandler prints the stacks of all threads
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(5)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    output = log.read_text(errors="replace")
    if code == 0:
        return Ended(0, "", output)
    if code is None:
        return Ended(None, f"{TOOK_TOO_LONG} {seconds:.0f} s", output)
    return Ended(code, f"status {code}: {cause(output)}", output)


class PeerError(Exception):
    """A server has no result. The message gives the reason in one line."""


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
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
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
        return int(fields[3]) == self._process.pid and fields[0] != "Z"


def _peak_of(pid: int) -> int:
    """Return the most bytes of a process that were in memory, 0 where it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM:")), 0)

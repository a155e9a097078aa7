"""Run spac's programs in processes that are forked from one that has imported them.

Imports take most of the time of a short run. Everything else is as a user starts it: a process of its own,
with its arguments, environment, folder, streams and exit code. ``python -m tests.forked FD`` is the process
that forks. It takes jobs from the socket FD and answers with exit codes.
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

ROOT = Path(__file__).resolve().parent.parent
IMPORTED = ("spac.run", "spac.chat.app", "spac.engine", "llama_cpp", "gguf")
TIMEOUT_S = 120
SIZE = 1 << 20  # of a job: its environment is the largest part


class Programs:
    """Starter of programs, which run one after the other."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.forked", str(theirs.fileno())], cwd=ROOT,
                pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL,
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
            )  # fmt: skip
        self._socket.settimeout(TIMEOUT_S)

    def run(
        self, module: str, arguments: Sequence[str], cwd: Path, env: Mapping[str, str], stdin: bytes | None
    ) -> subprocess.CompletedProcess[bytes]:
        """Run ``python -m module`` to its end. Without `stdin`, the stream is empty."""
        job = json.dumps({"module": module, "arguments": [*arguments], "cwd": str(cwd), "env": {**env}})
        with _given(stdin) as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            streams = [file.fileno() for file in (given, out, err)]
            socket.send_fds(self._socket, [job.encode("ascii")], streams)
            code = int(self._socket.recv(16))
            out.seek(0)
            err.seek(0)
            return subprocess.CompletedProcess([module, *arguments], code, out.read(), err.read())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _value: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._socket.close()
        self._process.kill()
        self._process.wait()


def _given(stdin: bytes | None) -> IO[bytes]:
    """Return a pipe that ends after `stdin`, or the null device."""
    if stdin is None:
        return open(os.devnull, "rb")
    reader, writer = os.pipe()
    with open(writer, "wb") as file:
        file.write(stdin)  # less than a pipe holds
    return open(reader, "rb")


def serve(jobs: socket.socket) -> dict[str, Any] | None:
    """Fork a process for every job. Return the job in the new process, and None at the end of all jobs."""
    while True:
        data, streams, _, _ = socket.recv_fds(jobs, SIZE, 3)
        if not data:
            return None
        if (process := os.fork()) == 0:
            for number, stream in enumerate(streams):
                os.dup2(stream, number)
                os.close(stream)
            job: dict[str, Any] = json.loads(data)
            return job
        for stream in streams:
            os.close(stream)
        jobs.send(str(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])).encode())


def main() -> None:
    for module in IMPORTED:
        importlib.import_module(module)
    del sys.modules["spac.run"]  # run_module executes it
    with socket.socket(fileno=int(sys.argv[1])) as jobs:
        job = serve(jobs)
    if job is not None:
        os.chdir(job["cwd"])
        os.environ.clear()
        os.environ.update(job["env"])
        sys.argv = [job["module"], *job["arguments"]]
        runpy.run_module(job["module"], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()

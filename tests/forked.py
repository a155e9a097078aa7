"""Run spac's programs in processes that are forked from one that has imported them.

Imports take most of the time of a short run. Everything else is as a user starts it: a process of its own,
with its arguments, environment, folder, streams and exit code. ``python -m tests.forked FD MODULES`` is the
process that forks, after it has imported the modules. It takes jobs from the socket FD, and answers with
their processes' numbers and exit codes.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

ROOT = Path(__file__).resolve().parent.parent
IMPORTED = (
    "spac.run", "spac.chat.app", "spac.engine", "llama_cpp", "gguf", "spac.serve.app", "spac.serve.server",
    "spac.serve.front", "uvicorn.protocols.http.h11_impl", "uvicorn.lifespan.on", "uvicorn.loops.auto",
)  # fmt: skip
TIMEOUT_S = 120
SIZE = 1 << 20  # of a job: its environment is the largest part


class Process:
    """A program that runs beside the tests, with the methods of subprocess.Popen that they need."""

    def __init__(self, programs: Programs, pid: int, stdout: IO[str]) -> None:
        self.pid = pid
        self.stdout = stdout
        self.returncode: int | None = None
        self._programs = programs
        self._end = os.pidfd_open(pid)  # readable once the process has ended

    def poll(self) -> int | None:
        """Return the exit code, or None while the process runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code. Raise subprocess.TimeoutExpired if the process still runs after `timeout`."""
        if self.returncode is None:
            if not select.select([self._end], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0)
            os.close(self._end)
            self.returncode = self._programs._exit_code(self.pid)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.poll() is None:
            signal.pidfd_send_signal(self._end, number)

    def kill(self) -> None:
        """End the process in any state."""
        self.send_signal(signal.SIGKILL)


class Programs:
    """Starter of programs in processes that share their imports."""

    def __init__(self, imported: Sequence[str] = IMPORTED, **env: str) -> None:
        """Import modules in a process with these further variables."""
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.forked", str(theirs.fileno()), *imported], cwd=ROOT,
                pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL,
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1", **env},
            )  # fmt: skip
        self._socket.settimeout(TIMEOUT_S)

    def run(
        self,
        module: str,
        arguments: Sequence[str],
        cwd: Path,
        env: Mapping[str, str],
        stdin: bytes | IO[Any] | None,
        stdout: IO[Any] | None = None,
    ) -> subprocess.CompletedProcess[bytes]:
        """Run ``python -m module`` to its end. Without `stdin`, the stream is empty."""
        with _given(stdin) as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            pid = self._fork(module, arguments, cwd, env, (given, stdout or out, err))
            code = self._exit_code(pid)
            out.seek(0)
            err.seek(0)
            return subprocess.CompletedProcess([module, *arguments], code, out.read(), err.read())

    def start(
        self, module: str, arguments: Sequence[str], cwd: Path, env: Mapping[str, str], stderr: IO[bytes]
    ) -> Process:
        """Start ``python -m module``. Its stdin is empty, and its stdout is a pipe."""
        reader, writer = os.pipe()
        with _given(None) as given, open(writer, "wb") as out:
            pid = self._fork(module, arguments, cwd, env, (given, out, stderr))
        return Process(self, pid, open(reader))

    def _fork(
        self,
        module: str,
        arguments: Sequence[str],
        cwd: Path,
        env: Mapping[str, str],
        streams: Sequence[IO[bytes]],
    ) -> int:
        job = json.dumps({"module": module, "arguments": [*arguments], "cwd": str(cwd), "env": {**env}})
        socket.send_fds(self._socket, [job.encode("ascii")], [stream.fileno() for stream in streams])
        return int(self._socket.recv(16))

    def _exit_code(self, pid: int) -> int:
        """Wait for the end of a process, and return its exit code."""
        self._socket.send(json.dumps({"pid": pid}).encode("ascii"))
        return int(self._socket.recv(16))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _value: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._socket.close()
        self._process.kill()
        self._process.wait()


@cache
def workers(library: Path | None) -> Programs:
    """Return the starter of tools.compare's workers: of an unpatched library, or of spac's for None."""
    if library is not None:
        return reference(library)
    made = Programs(("spac._core", "tools.compare.decoder"))
    atexit.register(made.__exit__, None, None, None)
    return made


def run_worker(library: str, job: Any, folder: Path, lib_path: Path | None = None) -> Any:
    """Run a job as tools.compare does, in a process that has imported the library already."""
    from tools.compare import driver

    def start(words: list[str], env: Mapping[str, str], _: float) -> subprocess.CompletedProcess[bytes]:
        return workers(lib_path).run("tools.compare.worker", words, ROOT, env, None)

    return driver.run_worker(library, job, folder, lib_path=lib_path, start=start)


@cache
def reference(library: Path) -> Programs:
    """Return the starter of programs that use an unpatched library."""
    closing = contextlib.ExitStack()
    atexit.register(closing.close)
    folder = Path(closing.enter_context(tempfile.TemporaryDirectory()))
    (folder / "libmtmd.so").symlink_to(library / "libllama.so")
    libraries = {"LLAMA_CPP_LIB_PATH": str(library), "MTMD_CPP_LIB": str(folder), "PYTHONPATH": str(ROOT)}
    return closing.enter_context(Programs(("llama_cpp.mtmd_cpp", "tools.compare.decoder"), **libraries))


def _given(stdin: bytes | IO[Any] | None) -> IO[bytes]:
    """Return the file, a pipe that ends after the bytes, or the null device."""
    if not isinstance(stdin, bytes):
        return open(os.devnull if stdin is None else os.dup(stdin.fileno()), "rb")
    reader, writer = os.pipe()
    with open(writer, "wb") as file:
        file.write(stdin)  # less than a pipe holds
    return open(reader, "rb")


def serve(jobs: socket.socket) -> dict[str, Any] | None:
    """Fork a process for every job, and wait for the processes that are named. Return the job in the new
    process, and None at the end of all jobs."""
    while True:
        data, streams, _, _ = socket.recv_fds(jobs, SIZE, 3)
        if not data:
            return None
        job: dict[str, Any] = json.loads(data)
        if "pid" in job:
            jobs.send(str(os.waitstatus_to_exitcode(os.waitpid(job["pid"], 0)[1])).encode())
            continue
        if (process := os.fork()) == 0:
            for number, stream in enumerate(streams):
                os.dup2(stream, number)
                os.close(stream)
            return job
        for stream in streams:
            os.close(stream)
        jobs.send(str(process).encode())


def main() -> None:
    for module in sys.argv[2:]:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()  # otherwise each process goes through all objects of the imports when it ends
    sys.modules.pop("spac.run", None)  # run_module executes it
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

"""Run a process that may crash or hang, and keep what explains it: its output, and where it hung."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

CAUSES = re.compile(r"error|ASSERT|abort|spac: |Error|illegal|status \d{3}")
"""Texts of a line that explains a crash. The first such line names the cause, later ones its effects."""
NOISE = re.compile(r"no error|errors? = 0|ERROR SUMMARY: 0|error_|0 errors|_error")
DEBUGGER_S = 25.0  # seconds that a debugger has to find where a process hangs


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


def where_it_hangs(pid: int) -> str:
    """Return every thread's stack as cuda-gdb sees it; without cuda-gdb, what the kernel reports of each
    thread."""
    if shutil.which("cuda-gdb"):
        words = ["cuda-gdb", "-p", str(pid), "-batch", "-ex", "thread apply all bt 24"]
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            done = subprocess.run(words, capture_output=True, text=True, timeout=DEBUGGER_S, check=False)
            if "#0" in done.stdout:
                return done.stdout
    lines = []
    for task in sorted(Path(f"/proc/{pid}/task").glob("*")):
        for name in ("comm", "wchan", "syscall", "stack"):
            with contextlib.suppress(OSError):
                lines.append(f"{task.name} {name}: {(task / name).read_text().strip()}")
    return "\n".join(lines)


def again(words: Sequence[object]) -> tuple[list[object], str] | None:
    """Return a command line that runs a crashing command under cuda-gdb, and the beginnings of lines that
    name the cause."""
    debugger = shutil.which("cuda-gdb")
    if debugger is None:
        return None
    steps = [part for step in ("run", "bt 40", "info sharedlibrary spac") for part in ("-ex", step)]
    return [debugger, "-batch", *steps, "--args", *words], "#"


def run(words: Sequence[object], log: Path, seconds: float, *, cwd: Path,
        environment: Mapping[str, str] | None = None) -> Ended:  # fmt: skip
    """Run a command. Its whole output, and where it hung if it did, are in `log`."""
    log.parent.mkdir(parents=True, exist_ok=True)
    # With faulthandler, a crash in native code prints the Python lines that led to it.
    more = {**(os.environ if environment is None else environment), "PYTHONFAULTHANDLER": "1"}
    with log.open("w") as file:
        process = subprocess.Popen(
            list(map(str, words)), cwd=cwd, env=more, stdout=file, stderr=file, process_group=0
        )
        try:
            code: int | None = process.wait(seconds)
        except subprocess.TimeoutExpired:
            code = None
            file.write(f"\nnot done within {seconds:.0f} s; its threads:\n{where_it_hangs(process.pid)}\n")
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    output = log.read_text(errors="replace")
    if code == 0:
        return Ended(0, "", output)
    if code is None:
        return Ended(None, f"not done within {seconds:.0f} s", output)
    return Ended(code, f"status {code}: {cause(output)}", output)

"""Run a process that may crash or hang, and keep its output and its Python stacks."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

CAUSES = re.compile(r"error|ASSERT|abort|spac: |Error|illegal|status \d{3}")
"""Texts of a line that explains a crash. The first such line names the cause, later ones its effects."""
NOISE = re.compile(r"no error|errors? = 0|ERROR SUMMARY: 0|error_|0 errors|_error")


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


def run(words: Sequence[object], log: Path, seconds: float, *, cwd: Path,
        environment: Mapping[str, str] | None = None) -> Ended:  # fmt: skip
    """Run a command. Its whole output is in `log`, with the Python stacks of a crash or a hang."""
    log.parent.mkdir(parents=True, exist_ok=True)
    more = {**(os.environ if environment is None else environment), "PYTHONFAULTHANDLER": "1"}
    with log.open("w") as file:
        process = subprocess.Popen(
            list(map(str, words)), cwd=cwd, env=more, stdout=file, stderr=file, process_group=0
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
        return Ended(None, f"not done within {seconds:.0f} s", output)
    return Ended(code, f"status {code}: {cause(output)}", output)

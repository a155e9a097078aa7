"""Driver of a worker process that survives its cases, or is replaced. It also checks the result of a case."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from hypothesis import HealthCheck, Phase, settings

from tests.conftest import ROOT

TIMEOUT_S = 30
CALLS_PER_PROCESS = 500  # a fresh process now and then: effects of one case must not hide another's fault


def budget(n: int) -> settings:
    """Return settings for about `n` examples. They are the same in every run. With SPAC_FUZZ they are others,
    and more of them."""
    factor = os.environ.get("SPAC_FUZZ", "").removeprefix("factor=")
    return settings(
        max_examples=int(n * float(factor or 1)),
        derandomize=not factor,
        deadline=None,
        database=None,
        phases=(Phase.explicit, Phase.generate),  # shrinking a hang would take for ever
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )


@dataclass(frozen=True)
class Answer:
    """Result of a call."""

    code: int
    out: str
    err: str
    threads: tuple[str, ...] = ()


NO_NUMBERS = "spac run: error: the model's logits are no finite numbers\n"
"""The end of the error output if weights are damaged."""


class DiedError(AssertionError):
    """Error for a process that ended or hung."""


class Worker:
    """Worker that runs calls in one process after the other."""

    def __init__(self) -> None:
        self.n_calls = 0
        self._process: subprocess.Popen[str] | None = None
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  (for the worker's life)
        self._folder = tempfile.TemporaryDirectory()  # for files that options write under any name

    def __call__(self, arguments: Sequence[str]) -> Answer:
        """Return the answer to a call. Raise DiedError if there is none, and start a new process at the next
        call."""
        if self.n_calls % CALLS_PER_PROCESS == 0:
            self._stop()
        process = self._process or self._start()
        self.n_calls += 1
        process.stdin.write(json.dumps(list(arguments)) + "\n")
        process.stdin.flush()
        reply = self._read(process)
        return Answer(reply["code"], reply["out"], reply["err"], tuple(reply["threads"]))

    def _start(self) -> subprocess.Popen[str]:
        self._errors.seek(0)
        self._errors.truncate()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.fuzz.worker"],
            cwd=self._folder.name,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            # Without GGML_NO_BACKTRACE, an aborting process runs a debugger on itself.
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
                "OMP_WAIT_POLICY": "passive",
                "GGML_NO_BACKTRACE": "1",
            },
        )
        self._read(self._process)
        return self._process

    def _read(self, process: subprocess.Popen[str]) -> dict[str, Any]:
        ready = select.select([process.stdout], [], [], TIMEOUT_S)[0]
        line = process.stdout.readline() if ready else ""
        if line:
            answer: dict[str, Any] = json.loads(line)
            return answer
        how = f"no answer in {TIMEOUT_S} s"
        if not ready:
            process.send_signal(signal.SIGABRT)  # the process prints where it is
        process.wait(TIMEOUT_S)
        how = f"ended with {process.returncode}" if ready else how
        self._stop()
        self._errors.seek(0)
        raise DiedError(f"{how}\n{self._errors.read()[-3000:].decode(errors='replace')}")

    def _stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _value: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._stop()
        self._errors.close()
        self._folder.cleanup()


def check(answer: Answer, arguments: Sequence[str]) -> None:
    """Check that the code is 0, or 2 with one line, and that nothing is left behind."""
    said = f"{arguments}\n{answer.err}"
    assert answer.code in (0, 2), said
    assert "Traceback" not in answer.err, said
    assert answer.threads == (), said
    if answer.code == 2:
        assert answer.out == "", said
        lines = [line for line in answer.err.splitlines() if not line.startswith("spac: ")]
        assert lines, said
        assert lines[-1].startswith("spac run: error: "), said
        assert len(lines) == 1, said

"""Run parts of a call, each in a process, within its time and the call's. Their results are reported and
kept."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from bench.gpu_suite.keeper import UNFINISHED, Keeper

ROOT = Path(__file__).resolve().parents[2]


class Parts:
    """One call. A failed part is noted, and the following parts still run."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.begun = args, time.monotonic()
        self.out, self.work = args.out.resolve(), args.work.resolve()
        self.keeper = Keeper(self.work, self.out / "state.tar.gz", args.carry / "state.tar.gz")
        self.logs = self.work / "logs"
        self.logs.mkdir(exist_ok=True)
        self.unfinished: list[str] = []
        self.failed: list[str] = []
        self.environment = {**os.environ}

    @property
    def left(self) -> float:
        """Return the seconds that are left of the call."""
        return float(self.args.seconds - (time.monotonic() - self.begun))

    def say(self, text: str) -> None:
        """Print a line to stdout and to session.txt."""
        line = f"[{time.monotonic() - self.begun:5.0f} s] {text}"
        print(line, flush=True)
        with (self.out / "session.txt").open("a") as file:
            file.write(line + "\n")

    def command(self, name: str, seconds: float, *words: object, keep: bool = False) -> int:
        """Run `python -m WORDS…` within a time. Its output goes to a log, whose end is printed when it fails.
        With `keep`, later calls do not run a part again that came to an end, good or bad."""
        if keep and self.keeper.ran(name):
            code = int(self.keeper.done[name]["code"])
            self.say(f"{name}: ended with status {code} in an earlier call")
            self.failed += [name] if code else []
            return code
        seconds = min(seconds, self.left - 5)
        if seconds < 2:
            self.unfinished.append(name)
            return UNFINISHED
        begun, log = time.monotonic(), self.logs / f"{name.replace(' ', '-')}.txt"
        code = self.process(log, seconds, [sys.executable, "-m", *map(str, words)])
        took = time.monotonic() - begun
        if keep:
            self.keeper.note(name, code=code, seconds=round(took, 1))
        self.say(f"{name}: {'done' if code == 0 else f'status {code}'} in {took:.0f} s")
        if code == UNFINISHED:
            self.unfinished.append(name)
        elif code:
            self.failed.append(name)
            self.say("\n".join(log.read_text(errors="replace").splitlines()[-12:]))
        return code

    def attempt(self, part: Callable[..., object], *arguments: object, **options: object) -> None:
        """Call a part. Its exception is reported, and the following parts still run."""
        try:
            part(*arguments, **options)
        except Exception:
            self.failed.append(part.__name__)
            self.say(traceback.format_exc()[-1500:])

    def process(self, log: Path, seconds: float, words: list[str]) -> int:
        """Return the exit code of a process, in a group that ends with its time. It has no session of its
        own, which could outlive a call that is cut off, and disturb the next one."""
        with log.open("a") as file:
            process = subprocess.Popen(
                words, cwd=ROOT, env=self.environment, stdout=file, stderr=file, process_group=0
            )
            try:
                return process.wait(seconds)
            except subprocess.TimeoutExpired:
                return UNFINISHED
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()

"""Write the comparison's twins once, while other parts run, in memory where there is enough of it.

    python -m bench.gpu_suite.twins NAME FOLDER

A writer may outlive the call that started it. Then a new writer waits for its end: two never write the same
file.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
GB = 1 << 30
ROOM = {"tiny": GB // 16}  # bytes that a pair needs; other names need FULL_SIZE
FULL_SIZE = 24 * GB


def files(name: str, folder: Path) -> tuple[Path, Path]:
    """Return (target, draft)."""
    target, draft = (folder / f"{name}-{role}.gguf" for role in ("target", "draft"))
    return target, draft


def place(name: str, memory: Path, disk: Path) -> Path:
    """Return the folder that has the pair, or that it is written to."""
    folder = memory / "spac-twins"
    if any(path.is_file() for path in files(name, folder)):
        return folder  # an earlier call's files, which take some of the free memory
    room = ROOM.get(name, FULL_SIZE)
    return folder if memory.is_dir() and shutil.disk_usage(memory).free > 2 * room else disk


def write(name: str, folder: Path) -> int:
    """Return tools.twin's exit code. Do nothing where the pair exists."""
    from tools.twin.__main__ import main as twin

    paths = files(name, folder)
    parts = [path.with_suffix(".part") for path in paths]
    with (folder / f"{name}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("another call's writer is at work", flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        if all(path.is_file() for path in paths):
            return 0
        code = twin([name, str(parts[0]), "--draft", str(parts[1])])
        if code == 0:
            for part, path in zip(parts, paths, strict=True):
                part.replace(path)
    return code


class Twins:
    """A pair, and the process that writes it."""

    def __init__(self, name: str, folder: Path, log: Path, environment: Mapping[str, str]) -> None:
        """Start writing."""
        self.folder, self._log = folder, log
        self.target, self.draft = files(name, folder)
        folder.mkdir(parents=True, exist_ok=True)
        words = [sys.executable, "-m", "bench.gpu_suite.twins", name, str(folder)]
        with log.open("a") as out:
            self._process = subprocess.Popen(
                words, cwd=ROOT, env=environment, stdout=out, stderr=out, process_group=0
            )

    def wait(self, seconds: float) -> int | None:
        """Return the writer's exit code, None where it is not done within the time."""
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    @property
    def said(self) -> str:
        """Return the last line that the writer printed."""
        return self._log.read_text(errors="replace")[-600:]

    def end(self) -> None:
        """End the writer if it is still at work."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


if __name__ == "__main__":
    sys.exit(write(sys.argv[1], Path(sys.argv[2])))

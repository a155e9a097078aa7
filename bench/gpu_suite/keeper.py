"""Keep a session's results in the work folder and, every few seconds, in one archive that outlives it."""

from __future__ import annotations

import json
import tarfile
import threading
import time
from pathlib import Path
from typing import Any

KEPT = (
    "done.json",
    "compare*/cells",
    "compare*/*.png",
    "compare*/*.json",
    "compare*/*.md",
    "smoke.json",
    "mask-cost.json",
    "limit.json",
    "parts-*",
    "patches*",
    "*.txt",
    "logs",
)
LARGEST = 1 << 20  # bytes of a file that is kept
UNFINISHED = 3  # the exit code of a part that is to be called again


def unpack(archive: Path, folder: Path) -> None:
    """Unpack an archive. Python 3.11 refuses members outside of the folder from 3.11.4 on."""
    safe = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
    with tarfile.open(archive) as content:
        content.extractall(folder, **safe)


class Keeper:
    """The results of finished parts, and their archive. A kill at any moment is safe: files are replaced
    whole."""

    def __init__(self, work: Path, archive: Path, carried: Path) -> None:
        """Unpack `carried`, an earlier session's archive, where the work folder has nothing newer."""
        self.work, self.archive = work, archive
        work.mkdir(parents=True, exist_ok=True)
        archive.parent.mkdir(parents=True, exist_ok=True)
        if carried.is_file() and not (work / "done.json").is_file():
            unpack(carried, work)
        path = work / "done.json"
        self.done: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._keep, daemon=True)

    def note(self, part: str, **found: Any) -> None:
        """Note that a part ran, and its result."""
        self.done[part] = {**found, "at": time.strftime("%H:%M:%S", time.gmtime())}
        unfinished = self.work / "done.tmp"
        unfinished.write_text(json.dumps(self.done, indent=1) + "\n")
        unfinished.replace(self.work / "done.json")

    def ran(self, part: str) -> bool:
        """Return True if the part came to an end, good or bad."""
        return self.done.get(part, {}).get("code", UNFINISHED) != UNFINISHED

    def __enter__(self) -> Keeper:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self.save()

    def _keep(self) -> None:
        while not self._ended.wait(10):
            self.save()

    def save(self) -> None:
        """Write the archive anew."""
        unfinished = self.archive.with_suffix(".tmp")
        with tarfile.open(unfinished, "w:gz", compresslevel=3) as content:
            for pattern in KEPT:
                for top in sorted(self.work.glob(pattern)):
                    for path in [top] if top.is_file() else sorted(top.rglob("*")):
                        if path.is_file() and path.suffix != ".tmp" and path.stat().st_size <= LARGEST:
                            content.add(path, path.relative_to(self.work).as_posix())
        unfinished.replace(self.archive)

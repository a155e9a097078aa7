"""A store of what tests compile. An output is made anew only if something that it is made from has changed.

It is in pytest's cache, so `pytest --cache-clear` empties it.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path


def kept(store: Path, name: str, made_from: Iterable[str | Path], make: Callable[[Path], None]) -> Path:
    """Return a folder of the store that `make` has filled. `made_from` has all that decides on the outputs:
    files, versions and options."""
    digest = hashlib.sha256()
    for part in made_from:
        data = part.read_bytes() if isinstance(part, Path) else part.encode()
        digest.update(b"%d " % len(data) + data)
    folder = store / f"{name}-{digest.hexdigest()[:32]}"
    if not folder.exists():
        unfinished = Path(tempfile.mkdtemp(dir=store))
        make(unfinished)
        try:
            os.rename(unfinished, folder)
        except OSError:  # another run was faster
            assert folder.exists()
    return folder


def compiler_and_cpu(compiler: str) -> str:
    """Return the compiler's version and the CPU's features, on which -march=native depends."""
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True).stdout
    flags = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("flags")]
    return version + "".join(flags[:1])

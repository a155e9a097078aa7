"""The program that runs another program on spac: `spac exec [OPTIONS] app.py …`."""

from __future__ import annotations

from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program and return its exit code."""
    from spac.exec.program import main as run

    return run(arguments)

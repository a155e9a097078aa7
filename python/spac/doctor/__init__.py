"""The program that reports what spac found on this machine, what is off and why: `python -m spac.doctor`."""

from __future__ import annotations

from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program and return its exit code."""
    from spac.doctor.program import main as run

    return run(arguments)

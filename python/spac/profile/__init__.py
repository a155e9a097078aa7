"""Costs of a model pair on this machine: measured, kept between runs, corrected while an engine runs.

`python -m spac.profile` measures them now. `spac.costs` says what they are.
"""

from __future__ import annotations

from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; returns its exit code."""
    from spac.profile.program import main as run  # late: engines import their costs from this package

    return run(arguments)

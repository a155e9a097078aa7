"""The program that measures the costs of a model pair on this machine: `python -m spac.profile`.

`spac.costs` defines the costs, keeps them between runs, and corrects them while an engine runs.
"""

from __future__ import annotations

from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; return its exit code."""
    from spac.profile.program import main as run

    return run(arguments)

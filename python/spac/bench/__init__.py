"""The program that finds the fastest settings: `python -m spac.bench --target model.gguf --draft draft.gguf`.

It measures schedulers, numbers of slots and draft lengths in every combination, in turns, beside the CPU
alone. Exit codes are those of `spac.run`.
"""

from __future__ import annotations

from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; return its exit code."""
    from spac.bench.program import main as run

    return run(arguments)

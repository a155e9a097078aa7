"""Which settings are fastest here: `python -m spac.bench --target model.gguf --draft draft.gguf`.

Schedulers, numbers of slots and draft lengths are measured in every combination, in turns, beside
the CPU alone. Exit codes are those of `spac.run`.
"""

from __future__ import annotations

from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; returns its exit code."""
    from spac.bench.program import main as run

    return run(arguments)

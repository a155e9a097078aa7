"""An OpenAI-compatible server: `spac serve --target model.gguf --draft draft.gguf`."""

from __future__ import annotations

from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the server until it is stopped, and return its exit code."""
    from spac.serve.app import main as run

    return run(arguments)

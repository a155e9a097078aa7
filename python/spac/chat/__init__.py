"""Talk with a model in the terminal: `spac chat --target model.gguf --draft draft.gguf`."""

from __future__ import annotations

from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the chat and return its exit code."""
    from spac.chat.app import main as run

    return run(arguments)

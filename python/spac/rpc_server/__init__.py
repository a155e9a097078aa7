"""The program that lends this machine's devices to spac on another machine: `python -m spac.rpc_server`."""

from __future__ import annotations

from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the server until it is stopped, and return its exit code."""
    from spac.rpc_server.program import main as run

    return run(arguments)

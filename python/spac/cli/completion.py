"""Print a script with which a shell completes spac's commands and options: `spac completion bash`."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Sequence

from spac.cli import COMMANDS, module_of
from spac.cli.options import Parser
from spac.cli.program import add_talk, guarded
from spac.errors import InputError

SHELLS = ("bash", "zsh", "fish")


def make_parser() -> Parser:
    """Return the parser with the options of `spac completion`."""
    parser = Parser(
        prog="spac completion",
        description="Print a script with which a shell completes spac's commands and options.",
    )
    parser.add_argument("shell", choices=SHELLS, help=f"the shell: {', '.join(SHELLS)}")
    add_talk(parser)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the script for a shell, and return the exit code."""
    parser = make_parser()
    options = parser.parse_args(arguments)
    return guarded(parser, options, lambda: _complete(options.shell))


def parser_of(name: str) -> Parser:
    """Return the parser of a command."""
    for module in (module_of(name), f"{module_of(name)}.app"):
        if (make := getattr(importlib.import_module(module), "make_parser", None)) is not None:
            parser: Parser = make()
            return parser
    raise LookupError(f"spac {name} has no make_parser()")


def _complete(shell: str) -> int:
    try:
        shtab = importlib.import_module("shtab")
    except ImportError:
        raise InputError("completion needs shtab: run `pip install 'spac[completion]'`") from None
    root = argparse.ArgumentParser(prog="spac")
    commands = root.add_subparsers()
    for name, purpose in COMMANDS.items():
        commands.add_parser(name, help=purpose)
        commands.choices[name] = parser = parser_of(name)
        for action in parser._actions:
            if str(action.metavar).startswith("FILE"):
                action.complete = shtab.FILE  # type: ignore[attr-defined]
    print(shtab.complete(root, shell))
    return 0

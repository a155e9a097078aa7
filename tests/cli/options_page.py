"""Write the page of every option of every program from the parsers: `python -m tests.cli.options_page`."""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "options.md"
PROGRAMS = (
    "run",
    "chat",
    "serve",
    "exec",
    "bench",
    "profile",
    "report",
    "trace",
    "models",
    "doctor",
    "rpc-server",
)


def page() -> str:
    """Return the page as Markdown."""
    lines = ["# Every option", ""]
    lines.append("What `--help` says, program by program (`python -m tests.cli.options_page`).")
    for name in PROGRAMS:
        parser = parser_of(name)
        lines += ["", f"## spac {name}", "", str(parser.description)]
        for group in parser._action_groups:
            rows = [row for action in group._group_actions if (row := _row(parser, action))]
            if rows:
                lines += ["", f"*{group.title}*", "", "| option | what it does |", "| --- | --- |", *rows]
    return "\n".join(lines) + "\n"


def parser_of(name: str) -> argparse.ArgumentParser:
    """Return the parser of a program."""
    name = name.replace("-", "_")
    for module in (f"spac.{name}", f"spac.{name}.program", f"spac.{name}.app", f"spac.{name}.__main__"):
        try:
            make = getattr(importlib.import_module(module), "make_parser", None)
        except ModuleNotFoundError:
            continue
        if make is not None:
            parser: argparse.ArgumentParser = make()
            return parser
    raise LookupError(f"spac {name} has no make_parser()")


def _row(parser: argparse.ArgumentParser, action: argparse.Action) -> str | None:
    if action.help is argparse.SUPPRESS or "--help" in action.option_strings:
        return None
    formatter = parser._get_formatter()
    value = "" if action.nargs == 0 else " " + formatter._format_args(action, _metavar(action))
    names = ", ".join(f"`{name}`" for name in action.option_strings) or f"`{action.dest}`"
    text = formatter._expand_help(action) if action.help else ""
    cells = (names + (f" {value.strip()}" if value and action.option_strings else ""), text)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _metavar(action: argparse.Action) -> str:
    if isinstance(action.metavar, str):
        return action.metavar
    return ",".join(map(str, action.choices)) if action.choices else action.dest.upper()


if __name__ == "__main__":
    PAGE.write_text(page())

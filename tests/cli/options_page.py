"""Write the page of every option of every program from the parsers: `python -m tests.cli.options_page`."""

from __future__ import annotations

import argparse
from pathlib import Path

from spac.cli.completion import parser_of

PAGE = Path(__file__).resolve().parents[2] / "docs" / "options.md"
PROGRAMS = (
    "setup",
    "run",
    "chat",
    "serve",
    "exec",
    "bench",
    "report",
    "models",
    "doctor",
    "completion",
    "rpc-server",
)


OTHER = {"options": "others", "positional arguments": "others"}
"""The page's titles for the groups to which argparse gives a title."""


def page() -> str:
    """Return the page as Markdown: one row an option, with the programs that have it.

    An option whose help differs between programs has one row for each help.
    """
    lines = ["# Every option", ""]
    lines += ["What `--help` says in all programs (`python -m tests.cli.options_page`).", ""]
    lines += ["| `spac …` | what it does |", "| --- | --- |"]
    titles: dict[tuple[str, str], str] = {}
    programs: dict[tuple[str, str], list[str]] = {}
    for name in PROGRAMS:
        parser = parser_of(name)
        lines.append(f"| `{name}` | {parser.description} |")
        for group in parser._action_groups:
            for row in filter(None, (_row(parser, action) for action in group._group_actions)):
                titles.setdefault(row, OTHER.get(str(group.title), str(group.title)))
                programs.setdefault(row, []).append(name)
    for title in dict.fromkeys(titles.values()):
        lines += ["", f"## {title[0].upper()}{title[1:]}", ""]
        lines += ["| option | what it does | `spac …` |", "| --- | --- | --- |"]
        for (option, text), names in programs.items():
            if titles[option, text] == title:
                lines.append(f"| {option} | {text} | {', '.join(names)} |")
    return "\n".join(lines) + "\n"


def _row(parser: argparse.ArgumentParser, action: argparse.Action) -> tuple[str, str] | None:
    """Return an option's names with its value, and its help; None if `--help` does not show it."""
    if action.help is argparse.SUPPRESS or "--help" in action.option_strings:
        return None
    formatter = parser._get_formatter()
    value = "" if action.nargs == 0 else " " + formatter._format_args(action, _metavar(action))
    names = ", ".join(f"`{name}`" for name in action.option_strings) or f"`{action.dest}`"
    text = formatter._expand_help(action) if action.help else ""
    option = names + (f" {value.strip()}" if value and action.option_strings else "")
    return option.replace("|", "\\|"), text.replace("|", "\\|")


def _metavar(action: argparse.Action) -> str:
    if isinstance(action.metavar, str):
        return action.metavar
    return ",".join(map(str, action.choices)) if action.choices else action.dest.upper()


if __name__ == "__main__":
    PAGE.write_text(page())

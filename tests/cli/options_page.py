"""Write the page of every option of every program from the parsers: `python -m tests.cli.options_page`."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field
from pathlib import Path

from spac import env
from spac.cli.completion import parser_of

PAGE = Path(__file__).resolve().parents[2] / "docs" / "options.md"
PROGRAMS = (
    "setup", "run", "chat", "serve", "exec", "bench", "report", "models", "doctor", "completion",
    "rpc-server",
)  # fmt: skip
VARIABLES = [each for each in vars(env).values() if isinstance(each, env.Variable | env.Parts)]
OTHER = {"options": "others", "positional arguments": "others"}
"""The page's titles for the groups to which argparse gives a title."""


@dataclass
class Row:
    """An option of one or several programs, in the group in which the first of them has it."""

    title: str
    programs: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    """The programs that have the option, by its names with its value, and its help."""

    def __str__(self) -> str:
        """Return the row. What differs from the first program's option follows with the program's name."""
        [first, *others] = self.programs
        options, texts = [first[0]], [first[1]]
        for option, text in others:
            of = ", ".join(self.programs[option, text])
            options += [f"{of}: {option}"] if option != first[0] else []
            texts += [f"**{of}**: {text}"] if text != first[1] else []
        every = ", ".join(name for names in self.programs.values() for name in names)
        return f"| {'; '.join(options)} | {'. '.join(texts)} | {every} |"


def page() -> str:
    """Return the page as Markdown: one row an option, with the programs that have it."""
    lines = ["# Every option", ""]
    lines += ["What `--help all` says in all programs (`python -m tests.cli.options_page`).", ""]
    lines += ["| `spac …` | what it does |", "| --- | --- |"]
    rows: dict[str, Row] = {}
    for name in PROGRAMS:
        parser = parser_of(name)
        lines.append(f"| `{name}` | {parser.description} |")
        for group in parser._action_groups:
            for action in group._group_actions:
                if (found := _row(parser, action)) is not None:
                    title = OTHER.get(str(group.title), str(group.title))
                    row = rows.setdefault(found[0].split("`")[1], Row(title))
                    row.programs.setdefault(found, []).append(name)
    for title in dict.fromkeys(row.title for row in rows.values()):
        lines += ["", f"## {title[0].upper()}{title[1:]}", ""]
        lines += ["| option | what it does | `spac …` |", "| --- | --- | --- |"]
        lines += [str(row) for row in rows.values() if row.title == title]
    lines += ["", "## Environment variables", ""]
    lines += ["They are for debugging and tests, except for the server's key.", ""]
    lines += ["| variable | meaning |", "| --- | --- |"]
    lines += [f"| `{each.name}` | {each.doc} |" for each in VARIABLES]
    lines += ["", f"### Parts of {env.FORM.name}", "", "| part | what it does |", "| --- | --- |"]
    lines += [f"| `{part}` | {text} |" for part, text in env.FORM.known.items()]
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

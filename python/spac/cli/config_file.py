"""The user's file of default options, config.toml: a table for each program, and [all] for all of them."""

from __future__ import annotations

import argparse
import tomllib
from collections.abc import Iterator, Sequence
from typing import Any

from spac import env
from spac.cli.spellings import Gather
from spac.errors import InputError, one_line
from spac.machine.files import read_plain, unreadable

ALL, PROGRAMS = "all", ("run", "chat", "serve")
MODEL = ("target", "hf_repo", "hf_file", "draft", "hf_repo_draft", "mmproj", "lora")
"""Options that belong to the model that the file names. Another model on the command line drops them."""


def read() -> dict[str, dict[str, Any]]:
    """Return the tables of the file; none without a file. Raise InputError if it cannot be read."""
    path = env.config_file()
    try:
        tables = tomllib.loads(read_plain(path).decode())
    except (OSError, UnicodeError) as error:
        if isinstance(error, FileNotFoundError):
            return {}
        raise unreadable(path, error) from None
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InputError(f"{path}: not valid TOML: {one_line(str(error))}") from None
    for name, table in tables.items():
        if name not in (ALL, *PROGRAMS) or not isinstance(table, dict):
            raise InputError(f"{path}: '{name}' is not one of the tables [{'], ['.join((ALL, *PROGRAMS))}]")
    return tables


def options_of(parser: argparse.ArgumentParser, program: str) -> list[tuple[str, str]]:
    """Return the options that the file gives a program: names in the configuration, and command-line words.

    Those of [all] come first. Raise InputError, which names the file and the key, for a key that is no
    option of the program, and for a value of another type than the option's.
    """
    if program not in PROGRAMS:
        return []
    tables = read()
    return [
        (parser._option_string_actions[flag].dest, word)
        for table in (ALL, program)
        for key, value in tables.get(table, {}).items()
        for flag, word in _words(parser, program, table, key, value)
    ]


def without_model(options: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the options without the file's model and what belongs to it; all if the file names none."""
    named = any(name in MODEL[:2] for name, _ in options)
    return [each for each in options if not (named and each[0] in MODEL)]


def _words(
    parser: argparse.ArgumentParser, program: str, table: str, key: str, value: Any
) -> Iterator[tuple[str, str]]:
    """Yield the option and the word of a command line for each value of a key."""
    place, flag = f"{env.config_file()}: [{table}] {key}", f"--{key.replace('_', '-')}"
    action = parser._option_string_actions.get(flag)
    if action is None or action.dest == "help":
        also = f" (keys of [{ALL}] are options of {', '.join(PROGRAMS)})" if table == ALL else ""
        raise InputError(f"{place}: spac {program} has no option {flag}{also}")
    if action.nargs == 0:
        if not isinstance(value, bool):
            raise InputError(f"{place}: must be true or false, not {value!r}")
        flag = flag if value else f"--no-{flag.removeprefix('--')}"
        if flag in parser._option_string_actions:  # else the option is off without a word
            yield flag, flag
        return
    repeats = isinstance(action, Gather | argparse._AppendAction)
    for each in value if isinstance(value, list) and repeats else [value]:
        if isinstance(each, bool) or not isinstance(each, str | int | float):
            raise InputError(f"{place}: must be a text or a number, not {each!r}")
        try:
            parser._check_value(action, parser._get_value(action, str(each)))
        except argparse.ArgumentError as error:
            raise InputError(f"{place}: {one_line(error.message)}") from None
        yield flag, f"{flag}={each}"

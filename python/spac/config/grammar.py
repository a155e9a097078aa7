"""Grammars from files and JSON schemas, as GBNF text for llama.cpp's sampler."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spac.config.schema_limits import check_schema
from spac.errors import InputError, one_line
from spac.machine.files import read_plain


def of_file(path: Path | str) -> str:
    """Return the grammar in a file. Raises InputError if it cannot be read or is empty."""
    text = _read(path, "grammar")
    if not text.strip():
        raise InputError(f"{path}: the grammar is empty")
    return text


def of_schema_file(path: Path | str) -> str:
    """Return the grammar of all texts that fit the JSON schema in a file. Raises InputError."""
    return of_schema(_read(path, "JSON schema"), name=f"{path}: ")


def of_schema(schema: str | Mapping[str, Any], *, name: str = "") -> str:
    """Return the grammar of all texts that fit a JSON schema.

    Raises InputError if the schema is invalid. The message begins with `name`.
    """
    if isinstance(schema, str):
        try:
            schema = json.loads(schema)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{name}the JSON schema is not valid JSON: {one_line(str(error))}") from None
    if not isinstance(schema, Mapping):
        raise InputError(f'{name}the JSON schema is not an object, such as {{"type": "object"}}')
    try:
        check_schema(schema)
        _check(schema)
        from spac import _core  # late: it loads the library

        return _core.grammar_of_schema(json.dumps(schema))
    except (InputError, RecursionError) as error:
        reason = one_line(str(error).removeprefix("JSON schema conversion failed:"))
        raise InputError(f"{name}the JSON schema cannot be made a grammar: {reason}") from None


def _check(schema: Any) -> None:
    """Raise InputError for what llama.cpp's converter accepts and should not.

    A reference leads to another schema, and one from the network may change. A pattern of a part of the text
    would accept any text.
    """
    if isinstance(schema, Mapping):
        pattern = schema.get("pattern", "^$")
        if isinstance(pattern, str) and not (pattern.startswith("^") and pattern.endswith("$")):
            raise InputError(f"the pattern {pattern!r} does not begin with ^ and end with $")
        reference = schema.get("$ref", "#/")
        if not (isinstance(reference, str) and reference.startswith("#/")):
            raise InputError(f"$ref {reference!r} does not begin with #/")
        for value in schema.values():
            _check(value)
    elif isinstance(schema, list):
        for value in schema:
            _check(value)


def _read(path: Path | str, what: str) -> str:
    try:
        return read_plain(path).decode("utf-8", "replace")
    except (OSError, ValueError) as error:  # ValueError: a null character in the name
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"{path}: the {what} cannot be read: {reason}") from None


_WORDS = re.compile(r'"(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\]|#.*|(?<![\w-])root(?![\w-])')
"""The parts of a grammar in which a rule's name has another meaning, and the name `root`."""


def from_root(text: str, root: str) -> str:
    """Return a grammar whose rule `root`, with which llama.cpp begins, is the one that has this name."""
    if root == "root":
        return text
    other = "root-0"
    while other in text:
        other += "0"
    renamed = _WORDS.sub(lambda found: other if found[0] == "root" else found[0], text)
    return f"{renamed}\nroot ::= {root}\n"

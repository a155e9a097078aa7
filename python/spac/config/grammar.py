"""Grammars from files and JSON schemas, as GBNF text for llama.cpp's sampler."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spac.errors import InputError, one_line


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
        _check_references(schema)
        from llama_cpp.llama_grammar import json_schema_to_gbnf  # late: it loads the library

        return str(json_schema_to_gbnf(json.dumps(schema)))
    except ImportError:
        raise
    except Exception as error:  # the converter raises many types for invalid schemas
        reason = one_line(str(error)) or type(error).__name__
        raise InputError(f"{name}the JSON schema cannot be made a grammar: {reason}") from None


def _check_references(schema: Any) -> None:
    """Raise InputError for a reference to another schema: a schema from the network may change."""
    if isinstance(schema, Mapping):
        reference = schema.get("$ref", "#/")
        if not (isinstance(reference, str) and reference.startswith("#/")):
            raise InputError(f"$ref {reference!r} does not begin with #/")
        for value in schema.values():
            _check_references(value)
    elif isinstance(schema, list):
        for value in schema:
            _check_references(value)


def _read(path: Path | str, what: str) -> str:
    try:
        return Path(path).read_bytes().decode("utf-8", "replace")
    except (OSError, ValueError) as error:  # ValueError: a null character in the name
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"{path}: the {what} cannot be read: {reason}") from None

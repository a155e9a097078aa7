"""Metadata that replace those of a model file (`--override-kv`)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from spac.errors import InputError

Value = bool | int | float | str
_LONGEST = 127
"""Bytes of the longest key, and of the longest text, in llama.cpp's structure."""
_KINDS = "int, float, bool, str"
_TRUTH = {"true": True, "false": False}


def parse_overrides(text: str) -> dict[str, Value]:
    """Return the values in a text `KEY=TYPE:VALUE,…`. Raises InputError."""
    found: dict[str, Value] = {}
    for item in text.split(","):
        key, is_pair, rest = item.partition("=")
        kind, is_typed, written = rest.partition(":")
        if not (key and is_pair and is_typed):
            raise InputError(f"'{item}' is not KEY=TYPE:VALUE, with TYPE one of {_KINDS}")
        found[key] = _value(key, kind, written)
    check_overrides(found)
    return found


def _value(key: str, kind: str, written: str) -> Value:
    try:
        if kind == "int":
            return int(written)
        if kind == "float":
            return float(written)
        if kind == "bool":
            return _TRUTH[written]
        if kind == "str":
            return written
    except (KeyError, ValueError):
        raise InputError(f"{key}: '{written}' is no {kind}") from None
    raise InputError(f"{key}: the type '{kind}' is not one of {_KINDS}")


def check_overrides(values: Mapping[str, Any]) -> None:
    """Raise InputError for a key or a value that llama.cpp's structure cannot hold."""
    for key, value in values.items():
        if not 0 < len(key.encode()) <= _LONGEST or "\0" in key:
            raise InputError(f"override_kv: a key has 1 to {_LONGEST} bytes, not '{key[:40]}'")
        if not isinstance(value, bool | int | float | str):
            raise InputError(f"override_kv: {key}: {value!r} is no {_KINDS}")
        if isinstance(value, str) and (len(value.encode()) > _LONGEST or "\0" in value):
            raise InputError(f"override_kv: {key}: the text has more than {_LONGEST} bytes")
        if isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise InputError(f"override_kv: {key}: {value} has more than 64 bits")
        if isinstance(value, float) and not math.isfinite(value):
            raise InputError(f"override_kv: {key}: {value} is no number")

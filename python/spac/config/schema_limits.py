"""Limits of JSON schemas, checked before llama.cpp makes a grammar of them.

Its converter writes a rule for every part of a schema, and follows each reference at each place. A short
schema can take all memory or all time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from spac.errors import InputError

MAX_VALUES = 30_000
"""Values in a schema, or in the schemas of a request's tools: subschemas, names, members of an enum."""
_MAX_DEPTH = 100
_MAX_PROPERTIES = 2_000
_MAX_OPTIONAL = 250  # properties of one object; its grammar has the square of it
_MAX_NAME = 300  # characters of a property's name; its grammar may nest as deep
_MAX_REFERENCES = 500
_MAX_WAYS = 20_000  # from reference to reference

_NAMED = ("properties", "$defs", "definitions")
_DATA = ("enum", "const", "default", "examples")
_BOUNDS = (("minItems", "maxItems"), ("minLength", "maxLength"), ("minimum", "maximum"))
_WITHOUT_CLASSES = re.compile(r"\\.|\[(?:\\.|[^\]\\])*\]", re.DOTALL)


def check_schema(schema: Mapping[str, Any]) -> int:
    """Return the number of a schema's values. Raise InputError with the limit that it exceeds."""
    n_values = n_properties = 0
    references = set[str]()
    for value, depth, times, is_schema in _parts(schema):
        n_values += times
        if n_values > MAX_VALUES:
            raise _limit(MAX_VALUES, "values")
        if depth > _MAX_DEPTH:
            raise _limit(_MAX_DEPTH, "levels")
        if not is_schema:
            continue
        properties = value.get("properties")
        if isinstance(properties, Mapping):
            n_properties += len(properties)
            if n_properties > _MAX_PROPERTIES:
                raise _limit(_MAX_PROPERTIES, "properties")
            _check_object(properties, value.get("required"))
        if isinstance(reference := value.get("$ref"), str):
            references.add(reference)
            if len(references) > _MAX_REFERENCES:
                raise _limit(_MAX_REFERENCES, "different references")
        _check_bounds(value)
    _check_references(schema, references)
    return n_values


def check_schemas(schemas: Sequence[Any]) -> None:
    """Raise InputError if the schemas of a request's tools and of its answer exceed a limit."""
    try:
        n_values = sum(check_schema(each) for each in schemas if isinstance(each, Mapping))
    except (InputError, RecursionError) as error:
        raise InputError(f"a JSON schema cannot be used: {error}") from None
    if n_values > MAX_VALUES:
        raise InputError(f"the JSON schemas of the tools exceed the limit of {MAX_VALUES:,} values together")


def _limit(most: int, what: str) -> InputError:
    return InputError(f"the schema exceeds the limit of {most:,} {what}")


def _parts(schema: Any) -> Iterator[tuple[Any, int, int, bool]]:
    """Yield the values of a schema: each with its depth, how often it is read, and True for a subschema."""
    todo: list[tuple[Any, int, int, str]] = [(schema, 1, 1, "schema")]
    while todo:
        value, depth, times, kind = todo.pop()
        is_schema = kind == "schema" and isinstance(value, Mapping)
        yield value, depth, times, is_schema
        if isinstance(value, Mapping):
            types = value.get("type") if is_schema else None
            if isinstance(types, Sequence) and not isinstance(types, str):
                times = min(times * max(1, len(types)), MAX_VALUES + 1)  # it is read once for each type
            for name, inner in value.items():
                inner_kind = kind
                if is_schema and name in _NAMED:
                    inner_kind = "names"
                elif is_schema and name in _DATA:
                    inner_kind = "data"
                elif kind == "names":
                    inner_kind = "schema"
                todo.append((inner, depth + 1, times, inner_kind))
        elif isinstance(value, list):
            todo += [(inner, depth + 1, times, kind) for inner in value]


def _check_object(properties: Mapping[str, Any], required: Any) -> None:
    needed = {name for name in required if isinstance(name, str)} if isinstance(required, list) else set()
    if sum(name not in needed for name in properties) > _MAX_OPTIONAL:
        raise _limit(_MAX_OPTIONAL, "optional properties in an object")
    if any(len(name) > _MAX_NAME for name in properties):
        raise _limit(_MAX_NAME, "characters in a property's name")


def _check_bounds(schema: Mapping[str, Any]) -> None:
    for low, high in _BOUNDS:
        least, most = schema.get(low), schema.get(high)
        if isinstance(least, int | float) and isinstance(most, int | float) and least > most:
            raise InputError(f"{low}, {least}, exceeds {high}, {most}")
    pattern = schema.get("pattern")
    if isinstance(pattern, str):
        for least, most in re.findall(r"\{(\d{1,9}),(\d{1,9})\}", _WITHOUT_CLASSES.sub("", pattern)):
            if int(least) > int(most):
                raise InputError(f"the pattern {pattern!r} repeats at least {least} times and at most {most}")


def _check_references(schema: Mapping[str, Any], references: set[str]) -> None:
    """Follow references as the converter does, and refuse those that have no end or too many ways."""
    n_ways = 0

    def follow(node: Any, open_: frozenset[str]) -> None:
        nonlocal n_ways
        n_ways += 1
        if n_ways > _MAX_WAYS:
            raise _limit(_MAX_WAYS, "ways through its references")
        if not isinstance(node, Mapping):
            return
        reference = node.get("$ref")
        if isinstance(reference, str):
            if reference not in open_:
                follow(_target(schema, reference), open_ | {reference})
            return
        for key in ("anyOf", "oneOf", "allOf"):
            if isinstance(inner := node.get(key), list):
                for each in inner:
                    follow(each, open_)

    for reference in references:
        seen, node = {reference}, _target(schema, reference)
        while isinstance(node, Mapping) and isinstance(following := node.get("$ref"), str):
            if following in seen:
                raise InputError(f"$ref {reference!r} leads to itself")
            seen.add(following)
            node = _target(schema, following)
        follow({"$ref": reference}, frozenset())


def _target(schema: Any, reference: str) -> Any:
    """Return the part of a schema that a reference names, None for no such part."""
    for name in reference.split("/")[1:]:
        if isinstance(schema, Mapping):
            schema = schema.get(name)
        elif isinstance(schema, list) and name.isascii() and name.isdigit() and len(name) < 9:
            schema = schema[int(name)] if int(name) < len(schema) else None
        else:
            return None
    return schema

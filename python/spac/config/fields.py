"""Declaration and check of a setting: a dataclass field that is also an option of the command line."""

from __future__ import annotations

import difflib
import inspect
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, field, fields
from typing import Any, Protocol, Self, TypeVar

from spac.errors import InputError


@dataclass(frozen=True)
class Range:
    """The values that a number may take, both ends included."""

    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.low} to {self.high}"

    def __contains__(self, value: object) -> bool:
        return isinstance(value, int | float) and self.low <= value <= self.high


Value = TypeVar("Value", covariant=True)
Given = TypeVar("Given", contravariant=True)


class Parsed(Protocol[Value, Given]):
    """The type of a field that is set to what a user gave, and holds what its `parse` made of it."""

    def __get__(self, config: object, kind: type | None = None) -> Value: ...
    def __set__(self, config: object, value: Given) -> None: ...


COUNT = Range(0, 2**31 - 1)
LOOK_BACK = Range(-1, 2**31 - 1)
PROBABILITY = Range(0, 1)


def option(
    default: Any,
    help: str,
    *flags: str,
    range: Range | None = None,
    choices: tuple[str, ...] | None = None,
    metavar: str | None = None,
    group: str = "",
    off: tuple[str, ...] = (),
    parse: Callable[[Any], Any] | None = None,
) -> Any:
    """Return a dataclass field that is also an option of the command line. Messages name its first flag.

    `group` is the option's heading in the help, if it differs from the configuration's. `off` has the flags
    that set a field to False whose default is True. Such a field still accepts `flags`, and its `help` tells
    what the flags of `off` do. A class as `default` is called for each object. `parse` makes the field's
    value from what a user gave, be it text or the value itself, and raises InputError. None stays None. A
    field without `flags` is for Python alone.
    """
    metadata = {
        "help": help, "flags": flags, "range": range, "choices": choices, "metavar": metavar, "group": group,
        "off": off, "parse": parse,
    }  # fmt: skip
    if isinstance(default, type):
        return field(default_factory=default, metadata=metadata)
    return field(default=default, metadata=metadata)


def option_fields(config: Any) -> list[Field[Any]]:
    """Return a configuration's own fields, then the inherited ones.

    InitVars are among them, which are other ways to set one of the fields.
    """
    inherited = {name for base in config.__bases__ for name in getattr(base, "__dataclass_fields__", ())}
    found = [
        item for item in config.__dataclass_fields__.values() if not str(item.type).startswith("ClassVar")
    ]
    return sorted(found, key=lambda item: item.name in inherited)


def help_of(item: Field[Any]) -> str:
    """Return the help text of a field, with its range and its default."""
    text = str(item.metadata["help"])
    if item.metadata["range"] is not None:
        text += f"; {item.metadata['range']}"
    is_told = "(default: " in text or isinstance(item.default, bool) or item.default == ""
    if isinstance(item.default, int | float | str) and not is_told:
        text += f" (default: {item.default})"
    return text


Config = TypeVar("Config")


def documented(config: type[Config]) -> type[Config]:
    """Add the help text of each field to a configuration's docstring."""
    lines = [inspect.cleandoc(config.__doc__ or ""), "", "Fields:"]
    for item in option_fields(config):
        condition = "if False: " if item.metadata["off"] else ""
        lines += textwrap.wrap(
            f"{item.name}: {condition}{help_of(item)}", 100, initial_indent=" " * 4,
            subsequent_indent=" " * 8, break_long_words=False, break_on_hyphens=False,
        )  # fmt: skip
    config.__doc__ = "\n".join(lines)
    return config


class Checked:
    """A base class of configurations. It parses every field, and checks its declared range and choices."""

    def __post_init__(self) -> None:
        for item in fields(self):  # type: ignore[arg-type]
            parse, value = item.metadata.get("parse"), getattr(self, item.name)
            if parse is not None and value is not None:
                object.__setattr__(self, item.name, parse(value))
            self._check(item)

    def _check(self, item: Field[Any]) -> None:
        value = getattr(self, item.name)
        limits, choices = item.metadata.get("range"), item.metadata.get("choices")
        if limits is not None and value is not None:
            if isinstance(value, bool) or not isinstance(value, int | float) or value not in limits:
                raise InputError(f"{item.name} must be {limits}, not {value!r}")
            if item.type in ("int", "int | None") and not isinstance(value, int):
                raise InputError(f"{item.name} must be a whole number, not {value!r}")
        if choices is not None and value is not None:
            for each in names_in(value):
                if each not in choices:
                    raise InputError(f"{item.name}: '{each}' is not one of {', '.join(choices)}")

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Self:
        """Return a configuration from keys and values, such as those of a settings file.

        Raises InputError for an unknown key. The message lists the known keys.
        """
        known = [item.name for item in option_fields(cls)]
        for key in values:
            if key not in known:
                close = difflib.get_close_matches(key, known, n=1)
                hint = f"; did you mean '{close[0]}'?" if close else "."
                raise InputError(f"{cls.__name__} has no '{key}'{hint} It knows: {', '.join(known)}")
        return cls(**values)


def names_in(value: Any) -> tuple[str, ...]:
    """Return the names in a tuple, in a list, or in one text that separates them with commas."""
    if isinstance(value, str):
        return tuple(name.strip() for name in value.split(","))
    return tuple(value) if isinstance(value, list | tuple) else (value,)

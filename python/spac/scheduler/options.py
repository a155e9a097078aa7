"""The options of a scheduler, which a configuration checks before anything is built."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from types import UnionType
from typing import Any, ClassVar

from spac.errors import InputError

_KINDS: dict[str, type | UnionType] = {"int": int, "float": int | float, "bool": bool}
_WORDS = {"int": "a whole number", "float": "a number", "bool": "on or off"}


@dataclass(frozen=True)
class Options:
    """The options of one scheduler. Raise InputError for values of a wrong type or out of range."""

    scheduler: ClassVar[str]
    """The scheduler's name."""
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """Options that go by one word, as in "moe-spac:paper"."""

    def __post_init__(self) -> None:
        for item in fields(self):
            kind, value = str(item.type), getattr(self, item.name)
            if kind in _KINDS and (
                not isinstance(value, _KINDS[kind]) or isinstance(value, bool) != (kind == "bool")
            ):
                raise self.refusal(item.name, _WORDS[kind])

    def refusal(self, name: str, accepted: str) -> InputError:
        """Return the error for the value of an option that is not what is `accepted`."""
        return InputError(
            f"scheduler '{self.scheduler}': {name} must be {accepted}, not {getattr(self, name)!r}"
        )

"""Provide the table of PTX instructions that can be translated, and the functions that all of them share.

A translator gets the place where the instruction stands, the operation's parts behind the first dot, and the
operands. The instructions are in arithmetic.py, choosing.py, memory.py and threads.py.
"""

from __future__ import annotations

from collections.abc import Callable

from .module import PtxError
from .operands import IGNORED, ROUNDS, TYPES, Place

Translator = Callable[[Place, list[str], list[str]], str]
INSTRUCTIONS: dict[str, Translator] = {}


def instruction(*names: str) -> Callable[[Translator], Translator]:
    def note(make: Translator) -> Translator:
        for name in names:
            INSTRUCTIONS[name] = make
        return make

    return note


def kind_of(parts: list[str]) -> str:
    """Return the last part that is a type."""
    for part in reversed(parts):
        if part in TYPES:
            return part
    raise PtxError("an operation without a type")


def round_of(parts: list[str]) -> str:
    return next((ROUNDS[part] for part in parts if part in ROUNDS), "Round::rn")


def check(parts: list[str], known: set[str]) -> None:
    """Raise PtxError for an unknown part, which would change the result."""
    left = [p for p in parts if p not in known and p not in IGNORED and p not in TYPES and p not in ROUNDS]
    if left:
        raise PtxError(f"unknown: .{left[0]}")

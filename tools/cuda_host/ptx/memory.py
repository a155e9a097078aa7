"""Translate instructions that read and write memory."""

from __future__ import annotations

import re

from .module import PtxError, split, width
from .operands import HALVES, TYPES, Place, check, instruction, kind_of, one_of

SPACES = {"global", "shared", "shared__cta", "local", "const", "param", "param__entry", "param__func"}
VECTORS = {"v2", "v4", "v8"}


def space_of(parts: list[str]) -> str:
    found = next((part for part in parts if part in SPACES), "")
    return found.split("__")[0]


def cells(at: Place, parts: list[str], place: str, values: str) -> tuple[str, list[tuple[str, str]], str]:
    """Return where an operation reads or writes, each register with its place in memory, and their type."""
    check([part for part in parts if not re.match(r"(L1|L2)__", part)], {*SPACES, *VECTORS, "unified"})
    kind = kind_of(parts)
    names = split(values[1:-1]) if VECTORS & {*parts} else [values]
    places = [(name, f"p + {i * width(kind)}") for i, name in enumerate(names)]
    return f"char * p = {at.address(place, space_of(parts))}; ", places, kind


@instruction("ld")
def ld(at: Place, parts: list[str], operands: list[str]) -> str:
    code, places, kind = cells(at, parts, operands[1], operands[0])
    to = TYPES[kind]
    code += "".join(f"const {to} v{i} = load<{to}>({place}); " for i, (_, place) in enumerate(places))
    return code + "".join(at.write(name, f"v{i}") for i, (name, _) in enumerate(places))


@instruction("st")
def st(at: Place, parts: list[str], operands: list[str]) -> str:
    code, places, kind = cells(at, parts, operands[0], operands[1])
    return code + "".join(f"store<{TYPES[kind]}>({place}, {at.read(name, kind)}); " for name, place in places)


ATOMIC = {
    "add": "add(old, b)",
    "min": "minimum(old, b)",
    "max": "maximum(old, b)",
    "and": "old & b",
    "or": "old | b",
    "xor": "old ^ b",
    "exch": "b",
    "inc": "old >= b ? 0 : old + 1",
    "dec": "old == 0 || old > b ? b : old - 1",
}


@instruction("atom", "red")
def atom(at: Place, parts: list[str], operands: list[str]) -> str:
    kind = kind_of(parts)
    check(parts, {*ATOMIC, *SPACES, "cas"})
    to = TYPES[kind]
    result, place, *rest = operands if not operands[0].startswith("[") else ["_", *operands]
    name = one_of(parts, {*ATOMIC, "cas"})
    code = f"char * p = {at.address(place, space_of(parts))}; "
    code += f"const {to} old = load<{to}>(p), b = {at.read(rest[0], kind)}; "
    if kind in HALVES:
        half = HALVES[kind]
        new = f"by_halves<{half}>([]({half} old, {half} b, {half}) {{ return {ATOMIC[name]}; }}, old, b)"
    else:
        new = f"old == b ? {at.read(rest[1], kind)} : old" if name == "cas" else ATOMIC[name]
    return code + f"store<{to}>(p, {new}); " + at.write(result, "old")


@instruction("cp")
def cp(at: Place, parts: list[str], operands: list[str]) -> str:
    if parts[0] != "async" or "bulk" in parts:
        raise PtxError("unknown form of cp")
    if {"commit_group", "wait_group", "wait_all"} & {*parts}:
        return ""  # it has been copied already
    to, source, size = operands
    return f"std::memcpy({at.address(to, 'shared')}, {at.address(source, 'global')}, {size});"

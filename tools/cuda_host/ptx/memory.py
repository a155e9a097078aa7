"""Translate instructions that read and write memory."""

from __future__ import annotations

import re

from .module import PtxError, split, width
from .operands import HALVES, TYPES, Place, check, instruction, kind_of

SPACES = {"global", "shared", "shared__cta", "local", "const", "param", "param__entry", "param__func"}


def space_of(parts: list[str]) -> str:
    found = next((part for part in parts if part in SPACES), "")
    return found.split("__")[0]


def memory_parts(parts: list[str]) -> tuple[str, str, int]:
    """Return space, type and number of elements."""
    n = next((int(part[1]) for part in parts if part in ("v2", "v4", "v8")), 1)
    left = {
        p
        for p in parts
        if p in SPACES or p in ("v2", "v4", "v8") or re.match(r"(L1|L2)__", p) or p in ("unified",)
    }
    check(parts, left)
    return space_of(parts), kind_of(parts), n


@instruction("ld", "ldu")
def ld(at: Place, parts: list[str], operands: list[str]) -> str:
    space, kind, n = memory_parts(parts)
    code = f"const char * p = {at.address(operands[1], space)}; "
    to = TYPES[kind]
    names = split(operands[0][1:-1]) if n > 1 else [operands[0]]
    values = "".join(f"const {to} v{i} = load<{to}>(p + {i * width(kind)}); " for i in range(n))
    return code + values + "".join(at.write(name, f"v{i}") for i, name in enumerate(names))


@instruction("st")
def st(at: Place, parts: list[str], operands: list[str]) -> str:
    space, kind, n = memory_parts(parts)
    code = f"char * p = {at.address(operands[0], space)}; "
    names = split(operands[1][1:-1]) if n > 1 else [operands[1]]
    return code + "".join(
        f"store<{TYPES[kind]}>(p + {i * width(kind)}, {at.read(name, kind)}); "
        for i, name in enumerate(names)
    )


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
    result = operands[0] if not operands[0].startswith("[") else "_"
    place, *rest = operands[1:] if result != "_" or not operands[0].startswith("[") else operands
    name = "cas" if "cas" in parts else next(part for part in parts if part in ATOMIC)
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
    if "commit_group" in parts or "wait_group" in parts or "wait_all" in parts:
        return ""  # it has been copied already
    to, source, size, *n = operands
    code = f"char * to = {at.address(to, 'shared')}; const char * from = {at.address(source, 'global')}; "
    if n:  # n bytes, and zeros behind them
        code += f"const uint32_t n = std::min({at.read(n[0], 'u32')}, {size}u); std::memset(to, 0, {size}); "
        return code + "std::memcpy(to, from, n);"
    return code + f"std::memcpy(to, from, {size});"

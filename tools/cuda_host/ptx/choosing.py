"""Translate instructions that compare, move and convert."""

from __future__ import annotations

from .module import PtxError, split, width
from .operands import FLOATS, HALVES, TYPES, WHOLES, Place, check, instruction, kind_of, one_of, round_of

ORDERED = {
    "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=",
    "lo": "<", "ls": "<=", "hi": ">", "hs": ">=",
}  # fmt: skip
COMBINED = {"and": "&&", "or": "||", "xor": "!="}


def comparison(name: str, kind: str, a: str, b: str) -> str:
    if kind not in FLOATS:
        return f"({a} {ORDERED[name]} {b})"
    either = f"(nan({a}) || nan({b}))"
    if name in ("num", "nan"):
        return f"({'!' if name == 'num' else ''}{either})"
    if name in ("equ", "neu", "ltu", "leu", "gtu", "geu"):
        return f"({either} || {a} {ORDERED[name[:2]]} {b})"
    return f"(!{either} && {a} {ORDERED[name]} {b})"


@instruction("setp")
def setp(at: Place, parts: list[str], operands: list[str]) -> str:
    kind = kind_of(parts)
    check(parts, {parts[0], *COMBINED})
    d, a, b, *third = operands
    if d.startswith("{") or "x2" in kind:
        raise PtxError("comparison by halves")
    value = comparison(parts[0], kind, at.read(a, kind), at.read(b, kind))
    other = f"!{value}"
    if third:
        combine, c = COMBINED[one_of(parts[1:], COMBINED)], at.read(third[0], "pred")
        value, other = f"({value} {combine} {c})", f"({other} {combine} {c})"
    first, _, second = d.partition("|")
    if second:
        return f"const bool t = {value}, f = {other}; {at.write(first, 't')}{at.write(second, 'f')}"
    return at.write(first, value)


@instruction("mov")
def mov(at: Place, parts: list[str], operands: list[str]) -> str:
    kind = kind_of(parts)
    d, a = operands
    names = split((d if d.startswith("{") else a).strip("{}"))
    n_bits = 8 * width(kind) // len(names)
    if d.startswith("{"):
        pieces = (
            at.write(n, f"static_cast<uint{n_bits}_t>(all >> {i * n_bits})") for i, n in enumerate(names)
        )
        return f"const {TYPES[kind]} all = {at.read(a, kind)}; {''.join(pieces)}"
    if a.startswith("{"):
        whole, part = f"uint{8 * width(kind)}_t", f"b{n_bits}"
        values = (f"static_cast<{whole}>({at.read(n, part)}) << {i * n_bits}" for i, n in enumerate(names))
        return at.write(d, " | ".join(values))
    return at.write(d, at.read(a, kind))


@instruction("cvt")
def cvt(at: Place, parts: list[str], operands: list[str]) -> str:
    check(parts, {"sat", "satfinite", *WHOLES})
    kinds = [part for part in parts if part in TYPES]
    to, source = kinds[0], kinds[-1]
    d = operands[0]
    if to in HALVES:
        into = f"convert<{HALVES[to]}, f32, Whole::none, {round_of(parts)}>"
        high, low = (f"uint32_t{{bits<uint16_t>({into}({at.read(o, 'f32')}))}}" for o in operands[1:])
        return at.write(d, f"{high} << 16 | {low}")
    value = at.read(operands[1], source)
    if to not in FLOATS and source not in FLOATS:
        limited, plain = f"convert_limited<{TYPES[to]}>", f"convert<{TYPES[to]}, {TYPES[source]}>"
        return at.write(d, f"{limited if 'sat' in parts else plain}({value})")
    whole = next((WHOLES[part] for part in parts if part in WHOLES), "Whole::none")
    code = f"convert<{TYPES[to]}, {TYPES[source]}, {whole}, {round_of(parts)}>({value})"
    return at.write(d, f"saturate({code})" if "sat" in parts and to in FLOATS else code)


@instruction("cvta")
def cvta(at: Place, parts: list[str], operands: list[str]) -> str:
    value = at.read(operands[1], "u64")
    if {"shared", "shared__cta"} & {*parts}:
        value += f" {'-' if 'to' in parts else '+'} reinterpret_cast<uint64_t>(L.block->shared)"
    return at.write(operands[0], value)

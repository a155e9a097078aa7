"""Translate instructions that compare, choose, move and convert."""

from __future__ import annotations

from .module import PtxError, split, width
from .operands import HALVES, TYPES, WHOLES, Place, check, instruction, kind_of, round_of

ORDERED = {
    "eq": "==",
    "ne": "!=",
    "lt": "<",
    "le": "<=",
    "gt": ">",
    "ge": ">=",
    "lo": "<",
    "ls": "<=",
    "hi": ">",
    "hs": ">=",
}


def comparison(name: str, kind: str, a: str, b: str) -> str:
    if kind not in ("f16", "bf16", "f32", "f64"):
        return f"({a} {ORDERED[name]} {b})"
    if name in ("num", "nan"):
        return f"({'!' if name == 'num' else ''}(nan({a}) || nan({b})))"
    either = f"(nan({a}) || nan({b}))"
    if name in ("equ", "neu", "ltu", "leu", "gtu", "geu"):
        return f"({either} || {a} {ORDERED[name[:2]]} {b})"
    return f"(!{either} && {a} {ORDERED[name]} {b})"


@instruction("setp", "set")
def setp(at: Place, parts: list[str], operands: list[str]) -> str:
    test = parts[0]
    kind = kind_of(parts)
    check(parts, {test, "and", "or", "xor"})
    d, a, b, *third = operands
    value = comparison(test, kind, at.read(a, kind), at.read(b, kind))
    combine = next(
        (sign for name, sign in (("and", "&&"), ("or", "||"), ("xor", "!=")) if name in parts), None
    )
    other = f"!{value}"
    if combine is not None:
        c = at.read(third[0], "pred")
        value, other = f"({value} {combine} {c})", f"({other} {combine} {c})"
    if d.startswith("{") or "x2" in kind:
        raise PtxError("comparison by halves")
    first, _, second = d.partition("|")
    if second:
        both = at.write(first.strip(), "t") + at.write(second.strip(), "f")
        return f"const bool t = {value}, f = {other}; {both}"
    if at.word_type(first) == "bool":
        return at.write(first, value)
    result = next(part for part in parts if part in TYPES)
    return at.write(first, f"{value} ? 1.0f : 0.0f" if result == "f32" else f"{value} ? ~0u : 0u")


@instruction("selp")
def selp(at: Place, parts: list[str], operands: list[str]) -> str:
    kind = kind_of(parts)
    d, a, b, c = operands
    return at.write(d, f"{at.read(c, 'pred')} ? {at.read(a, kind)} : {at.read(b, kind)}")


@instruction("slct")
def slct(at: Place, parts: list[str], operands: list[str]) -> str:
    first, second = (part for part in parts if part in TYPES)
    d, a, b, c = operands
    return at.write(d, f"{at.read(c, second)} >= 0 ? {at.read(a, first)} : {at.read(b, first)}")


@instruction("testp")
def testp(at: Place, parts: list[str], operands: list[str]) -> str:
    kind = kind_of(parts)
    tests = {
        "finite": "std::isfinite",
        "infinite": "std::isinf",
        "notanumber": "std::isnan",
        "normal": "std::isnormal",
    }
    return at.write(operands[0], f"{tests[parts[0]]}({at.read(operands[1], kind)})")


@instruction("mov")
def mov(at: Place, parts: list[str], operands: list[str]) -> str:
    kind = kind_of(parts)
    d, a = operands
    if d.startswith("{"):
        names = split(d[1:-1])
        part = f"b{8 * width(kind) // len(names)}"
        code = f"const {TYPES[kind]} all = {at.read(a, kind)}; "
        for i, name in enumerate(names):
            code += at.write(name, f"static_cast<{TYPES[part]}>(all >> {i * 8 * width(part)})")
        return code
    if a.startswith("{"):
        names = split(a[1:-1])
        part = f"b{8 * width(kind) // len(names)}"
        unsigned = TYPES[f"b{8 * width(kind)}"]
        values = (
            f"static_cast<{unsigned}>({at.read(n, part)}) << {i * 8 * width(part)}"
            for i, n in enumerate(names)
        )
        return at.write(d, " | ".join(values))
    return at.write(d, at.read(a, kind))


@instruction("cvt")
def cvt(at: Place, parts: list[str], operands: list[str]) -> str:
    check(parts, {"sat", "satfinite", "relu", *WHOLES, "pack"})
    kinds = [part for part in parts if part in TYPES]
    to, source = kinds[0], kinds[-1]
    d = operands[0]
    if to in HALVES:
        half = HALVES[to]
        into = f"convert<{half}, f32, Whole::none, {round_of(parts)}>"
        high, low = (f"uint32_t{{bits<uint16_t>({into}({at.read(o, 'f32')}))}}" for o in operands[1:])
        return at.write(d, f"{high} << 16 | {low}")
    if "relu" in parts or "pack" in parts:
        raise PtxError("unknown form of cvt")
    value = at.read(operands[1], source)
    whole = next((WHOLES[part] for part in parts if part in WHOLES), "Whole::none")
    if TYPES[to] in ("f16", "bf16", "f32", "f64") or TYPES[source] in ("f16", "bf16", "f32", "f64"):
        code = f"convert<{TYPES[to]}, {TYPES[source]}, {whole}, {round_of(parts)}>({value})"
        return at.write(d, f"saturate({code})" if "sat" in parts and to[0] in "fb" else code)
    return at.write(
        d,
        f"convert_limited<{TYPES[to]}>({value})"
        if "sat" in parts
        else f"convert<{TYPES[to]}, {TYPES[source]}>({value})",
    )


@instruction("cvta")
def cvta(at: Place, parts: list[str], operands: list[str]) -> str:
    d, a = operands
    value = at.read(a, "u64")
    if "shared" in parts or "shared__cta" in parts:
        base = "reinterpret_cast<uint64_t>(L.block->shared)"
        value = f"{value} - {base}" if "to" in parts else f"{value} + {base}"
    return at.write(d, value)

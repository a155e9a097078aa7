"""Translate instructions that compute: sums, products, functions, bits, choices."""

from __future__ import annotations

from .operands import (
    FLOATS,
    HALVES,
    INSTRUCTIONS,
    WIDE,
    Place,
    Translator,
    form,
    instruction,
    kind_of,
    one_of,
)


def real(function: str) -> Translator:
    """Translate an instruction of one float to C's function of a float or a double."""
    argument = "(static_cast<std::conditional_t<sizeof({type}) == 8, f64, f32>>({0}))"
    return form("static_cast<{type}>(" + function + argument + ")")


INSTRUCTIONS |= {
    "div": form("divide({0}, {1})"),
    "rem": form("remainder_of({0}, {1})"),
    "min": form("minimum<{NaN}>({0}, {1})", known="NaN"),
    "max": form("maximum<{NaN}>({0}, {1})", known="NaN"),
    "neg": form("negate({0})"),
    "abs": form("magnitude({0})"),
    "sqrt": real("std::sqrt"),
    "rsqrt": real("1 / std::sqrt"),
    "rcp": real("1 / "),
    "ex2": real("std::exp2"),
    "lg2": real("std::log2"),
    "sin": real("std::sin"),
    "cos": real("std::cos"),
    "tanh": real("std::tanh"),
    "copysign": form("std::copysign({1}, {0})"),
    "selp": form("{2} ? {0} : {1}", "", "", "pred"),
    "and": form("static_cast<{type}>({0} & {1})"),
    "or": form("static_cast<{type}>({0} | {1})"),
    "xor": form("static_cast<{type}>({0} ^ {1})"),
    "shl": form("shift_left({0}, {1})", "", "u32"),
    "shr": form("shift_right({0}, {1})", "", "u32"),
    "popc": form("static_cast<uint32_t>(__builtin_popcountll({0}))"),
    "clz": form("leading_zeros({0}, 8 * sizeof({type}))"),
    "brev": form("reverse({0})"),
    "bfe": form("field({0}, {1}, {2})", "", "u32", "u32"),
    "bfi": form("insert({0}, {1}, {2}, {3})", "", "", "u32", "u32"),
    "bmsk": form("mask_of_bits({0}, {1}, {wrap})", known="wrap clamp"),
    "lop3": form("logic({0}, {1}, {2}, {3})"),
    "prmt": form("permute({0}, {1}, {2})"),
}


def sum_of(function: str) -> Translator:
    """Translate a sum or difference. Integers that saturate stop at the limits of their type."""

    def make(at: Place, parts: list[str], operands: list[str]) -> str:
        limited = "sat" in parts and kind_of(parts) not in FLOATS
        name = f"{function}_limited" if limited else f"{function}<{{type}}, {{round}}>"
        return form(name + "({0}, {1})", known="sat")(at, parts, operands)

    return make


INSTRUCTIONS |= {"add": sum_of("add"), "sub": sum_of("sub")}


@instruction("mul", "mad", "fma")
def product(at: Place, parts: list[str], operands: list[str]) -> str:
    """Translate a product, or the sum of a product and a third operand."""
    kind = kind_of(parts)
    has_third = len(operands) == 4
    if kind in FLOATS or kind in HALVES:
        code = "fma<{type}, {round}>({0}, {1}, {2})" if has_third else "mul<{type}, {round}>({0}, {1})"
        return form(code, known="sat")(at, parts, operands)
    part = one_of(parts, ("lo", "hi", "wide"))
    code = f"mul_{part}({{0}}, {{1}})"
    third = WIDE[kind] if part == "wide" else kind
    return form(f"add({code}, {{2}})" if has_third else code, kind, kind, third, known=part)(
        at, parts, operands
    )


@instruction("not")
def invert(at: Place, parts: list[str], operands: list[str]) -> str:
    return form("!{0}" if parts == ["pred"] else "static_cast<{type}>(~{0})")(at, parts, operands)


@instruction("shf")
def funnel(at: Place, parts: list[str], operands: list[str]) -> str:
    side = {"l": "left", "r": "right"}[one_of(parts, "lr")]
    return form(f"funnel_{side}({{0}}, {{1}}, {{2}}, {{wrap}})", known="l r wrap clamp")(at, parts, operands)


@instruction("dp4a")
def dp4a(at: Place, parts: list[str], operands: list[str]) -> str:
    first, second = (f"{'u' if part == 'u32' else ''}int8_t" for part in parts)
    return form(f"dot4<{first}, {second}>({{0}}, {{1}}, {{2}})", "b32", "b32", "s32")(at, parts, operands)

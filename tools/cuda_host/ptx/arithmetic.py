"""Translate instructions that compute: sums, products, functions, bits."""

from __future__ import annotations

from .operands import (
    HALVES,
    INSTRUCTIONS,
    TYPES,
    WIDE,
    Place,
    Translator,
    check,
    instruction,
    kind_of,
    round_of,
)


def binary(name: str, *, rounds: bool = True) -> Translator:
    """Translate an instruction of two operands to a function of numbers.h. With `rounds`, the function takes
    a rounding mode."""

    def make(at: Place, parts: list[str], operands: list[str]) -> str:
        kind = kind_of(parts)
        check(parts, {"lo", "hi", "wide", "sat", "NaN"})
        d, a, b = operands
        if kind in HALVES:
            half = HALVES[kind]
            which = f"{name}{'_nan' if 'NaN' in parts else ''}"
            function = f"[]({half} a, {half} b, {half}) {{ return {which}(a, b); }}"
            return at.write(d, f"by_halves<{half}>({function}, {at.read(a, kind)}, {at.read(b, kind)})")
        x, y = at.read(a, kind), at.read(b, kind)
        is_float = kind in ("f16", "bf16", "f32", "f64")
        if is_float and rounds:
            value = f"{name}<{TYPES[kind]}, {round_of(parts)}>({x}, {y})"
        else:
            value = f"{name}{'_nan' if 'NaN' in parts else ''}({x}, {y})"
        if "sat" in parts and is_float:
            value = f"saturate({value})"
        elif "sat" in parts:
            sign = {"add": "+", "sub": "-"}[name]
            value = f"convert_limited<{TYPES[kind]}>(int64_t{{{x}}} {sign} int64_t{{{y}}})"
        return at.write(d, value)

    return make


INSTRUCTIONS |= {
    "add": binary("add"),
    "sub": binary("sub"),
    "div": binary("divide", rounds=False),
    "rem": binary("remainder_of", rounds=False),
    "min": binary("minimum", rounds=False),
    "max": binary("maximum", rounds=False),
}


@instruction("mul")
def mul(at: Place, parts: list[str], operands: list[str]) -> str:
    kind = kind_of(parts)
    if kind in HALVES or kind[0] in "fb":
        return binary("mul")(at, parts, operands)
    check(parts, {"lo", "hi", "wide"})
    d, a, b = operands
    form = next(part for part in parts if part in ("lo", "hi", "wide"))
    return at.write(d, f"mul_{form}({at.read(a, kind)}, {at.read(b, kind)})")


@instruction("mad", "fma")
def mad(at: Place, parts: list[str], operands: list[str]) -> str:
    kind = kind_of(parts)
    check(parts, {"lo", "hi", "wide", "sat"} | ({"relu"} if kind in HALVES else set()))
    d, a, b, c = operands
    if kind in HALVES:
        half = HALVES[kind]
        result = f"maximum({half}(0), fma(a, b, c))" if "relu" in parts else "fma(a, b, c)"
        function = f"[]({half} a, {half} b, {half} c) {{ return {result}; }}"
        values = ", ".join(at.read(operand, kind) for operand in (a, b, c))
        return at.write(d, f"by_halves<{half}>({function}, {values})")
    x, y = at.read(a, kind), at.read(b, kind)
    if kind in ("f16", "bf16", "f32", "f64"):
        value = f"fma<{TYPES[kind]}, {round_of(parts)}>({x}, {y}, {at.read(c, kind)})"
        return at.write(d, f"saturate({value})" if "sat" in parts else value)
    form = next(part for part in parts if part in ("lo", "hi", "wide"))
    third = at.read(c, WIDE[kind] if form == "wide" else kind)
    return at.write(d, f"add(mul_{form}({x}, {y}), {third})")


def unary(function: str, known: set[str] | None = None) -> Translator:
    def make(at: Place, parts: list[str], operands: list[str]) -> str:
        kind = kind_of(parts)
        check(parts, known or set())
        if kind in HALVES:
            half = HALVES[kind]
            code = function.format(x="a", type=half)
            lanes = f"[]({half} a, {half}, {half}) {{ return {half}({code}); }}"
            return at.write(operands[0], f"by_halves<{half}>({lanes}, {at.read(operands[1], kind)})")
        return at.write(operands[0], function.format(x=at.read(operands[1], kind), type=TYPES[kind]))

    return make


def real(function: str) -> Translator:
    """Translate an instruction of one float to C's function of a float or a double."""
    argument = "(static_cast<std::conditional_t<sizeof({type}) == 8, f64, f32>>({x}))"
    return unary("static_cast<{type}>(" + function + argument + ")")


INSTRUCTIONS |= {
    "neg": unary("negate({x})"),
    "abs": unary("magnitude({x})"),
    "not": unary("static_cast<{type}>(~{x})"),
    "cnot": unary("static_cast<{type}>({x} == 0)"),
    "sqrt": real("std::sqrt"),
    "rsqrt": real("1 / std::sqrt"),
    "rcp": real("1 / "),
    "ex2": real("std::exp2"),
    "lg2": real("std::log2"),
    "sin": real("std::sin"),
    "cos": real("std::cos"),
    "tanh": real("std::tanh"),
    "popc": unary("static_cast<uint32_t>(__builtin_popcountll({x}))"),
    "clz": unary("leading_zeros({x}, 8 * sizeof({type}))"),
    "brev": unary("reverse({x})"),
    "bfind": unary("find_leading({x})"),
}
_not = INSTRUCTIONS["not"]


@instruction("not")
def invert(at: Place, parts: list[str], operands: list[str]) -> str:
    if parts == ["pred"]:
        return at.write(operands[0], f"!{at.read(operands[1], 'pred')}")
    return _not(at, parts, operands)


def of_bits(form: str, second: str = "") -> Translator:
    """Translate an instruction of two words. The second is of another type where one is named."""

    def make(at: Place, parts: list[str], operands: list[str]) -> str:
        kind = kind_of(parts)
        check(parts, set())
        d, a, b = operands
        return at.write(d, form.format(a=at.read(a, kind), b=at.read(b, second or kind), type=TYPES[kind]))

    return make


INSTRUCTIONS |= {
    "and": of_bits("static_cast<{type}>({a} & {b})"),
    "or": of_bits("static_cast<{type}>({a} | {b})"),
    "xor": of_bits("static_cast<{type}>({a} ^ {b})"),
    "shl": of_bits("shift_left({a}, {b})", "u32"),
    "shr": of_bits("shift_right({a}, {b})", "u32"),
}


@instruction("shf")
def funnel(at: Place, parts: list[str], operands: list[str]) -> str:
    check(parts, {"l", "r", "wrap", "clamp"})
    d, *words = operands
    low, high, n = (at.read(w, "b32") for w in words)
    side = "left" if "l" in parts else "right"
    return at.write(d, f"funnel_{side}({low}, {high}, {n}, {str('wrap' in parts).lower()})")


def words(function: str, n: int, known: set[str] | None = None) -> Translator:
    """Translate an instruction of n words of the operation's type."""

    def make(at: Place, parts: list[str], operands: list[str]) -> str:
        kind = kind_of(parts)
        check(parts, known or set())
        values = [at.read(operand, kind) for operand in operands[1 : n + 1]]
        return at.write(operands[0], f"{function}({', '.join(values)})")

    return make


INSTRUCTIONS |= {
    "lop3": lambda at, parts, operands: words("logic", 4)(at, parts, operands),
    "prmt": words("permute", 3),
}


@instruction("bfe")
def bfe(at: Place, parts: list[str], operands: list[str]) -> str:
    d, a, b, c = operands
    return at.write(d, f"field({at.read(a, kind_of(parts))}, {at.read(b, 'u32')}, {at.read(c, 'u32')})")


@instruction("bfi")
def bfi(at: Place, parts: list[str], operands: list[str]) -> str:
    d, a, b, c, e = operands
    kind = kind_of(parts)
    return at.write(
        d, f"insert({at.read(a, kind)}, {at.read(b, kind)}, {at.read(c, 'u32')}, {at.read(e, 'u32')})"
    )


@instruction("bmsk")
def bmsk(at: Place, parts: list[str], operands: list[str]) -> str:
    d, a, b = operands
    return at.write(
        d, f"mask_of_bits({at.read(a, 'u32')}, {at.read(b, 'u32')}, {str('wrap' in parts).lower()})"
    )


@instruction("dp4a")
def dp4a(at: Place, parts: list[str], operands: list[str]) -> str:
    d, a, b, c = operands
    kinds = [f"{'u' if part == 'u32' else ''}int8_t" for part in parts]
    return at.write(
        d, f"dot4<{kinds[0]}, {kinds[1]}>({at.read(a, 'b32')}, {at.read(b, 'b32')}, {at.read(c, 's32')})"
    )


@instruction("dp2a")
def dp2a(at: Place, parts: list[str], operands: list[str]) -> str:
    d, a, b, c = operands
    first, second = (("u" if part == "u32" else "") for part in parts[1:])
    high = str(parts[0] == "hi").lower()
    values = f"{at.read(a, 'b32')}, {at.read(b, 'b32')}, {at.read(c, 's32')}, {high}"
    return at.write(d, f"dot2<{first}int16_t, {second}int8_t>({values})")


@instruction("copysign")
def copysign(at: Place, parts: list[str], operands: list[str]) -> str:
    d, a, b = operands
    kind = kind_of(parts)
    return at.write(d, f"std::copysign({at.read(b, kind)}, {at.read(a, kind)})")

"""Translate PTX's operands to C++: registers, numbers, special registers and addresses. Name its types in
C++.

It also has the table of instructions that can be translated, and the functions that all of them share."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Collection

from .module import PtxError, width

TYPES = {
    **{f"{s}{n}": f"{'' if s == 's' else 'u'}int{n}_t" for s in "sub" for n in (8, 16, 32, 64)},
    **{name: name for name in ("f16", "bf16", "f32", "f64")},
    "f16x2": "uint32_t",
    "bf16x2": "uint32_t",
    "pred": "bool",
}
FLOATS = ("f16", "bf16", "f32", "f64")
HALVES = {"f16x2": "f16", "bf16x2": "bf16"}
WIDE = {"s16": "s32", "u16": "u32", "s32": "s64", "u32": "u64"}
SPECIAL = {
    **{f"%tid.{i}": f"L.tid.{i}" for i in "xyz"},
    **{f"%ctaid.{i}": f"L.block->id.{i}" for i in "xyz"},
    **{f"%ntid.{i}": f"L.block->launch->block.{i}" for i in "xyz"},
    **{f"%nctaid.{i}": f"L.block->launch->grid.{i}" for i in "xyz"},
    "%laneid": "static_cast<uint32_t>(L.number)",
    "%lanemask_lt": "((1u << L.number) - 1)",
    "%lanemask_le": "((2u << L.number) - 1)",
    "%lanemask_gt": "~((2u << L.number) - 1)",
    "%lanemask_ge": "~((1u << L.number) - 1)",
}
WHOLES = {"rni": "Whole::near", "rzi": "Whole::zero", "rmi": "Whole::down", "rpi": "Whole::up"}
# Parts that change nothing here.
IGNORED = {
    "ftz", "rn", "rz", "approx", "full", "uni", "sync", "aligned", "cta", "gpu", "sys", "volatile", "weak",
    "relaxed", "acquire", "release", "acq_rel", "nc", "noftz", "mmio", "ca", "cg", "cs", "cv", "wb", "wt",
    "lu", "sc",
}  # fmt: skip


def identifier(name: str) -> str:
    return re.sub(r"\W", "_", name.lstrip("%"))


def label(name: str) -> str:
    return f"L_{identifier(name)}"


def literal(text: str) -> str:
    """Return a number of PTX in C++. A float is the integer of its bits."""
    if text[:2] in ("0f", "0F"):
        return f"0x{text[2:]}u"
    if text[:2] in ("0d", "0D"):
        return f"0x{text[2:]}ull"
    value = int(text.rstrip("U"), 0)
    return f"{value}ll" if value < 1 << 63 else f"{value}ull"


class Place:
    """The place of an instruction, which gives its operands their meaning."""

    def __init__(self, variable: Callable[[str], tuple[str, str] | None]) -> None:
        self.variable = variable  # returns space and address of a variable of the module
        self.scopes: list[dict[str, str]] = [{}]  # declared name -> C++ name
        self.registers: dict[str, str] = {}  # C++ name -> type of word
        self.families: list[tuple[str, str]] = []  # registers declared by number: prefix, type
        self.spaces: dict[str, tuple[str, str]] = {}  # C++ name of a variable -> (space, address)
        self.targets: dict[str, list[str]] = {}  # lists of labels

    def lookup(self, name: str) -> str | None:
        """Return the C++ name of a register, or the key of another variable of the function."""
        for scope in reversed(self.scopes):
            if name in scope:
                return scope[name]
        for prefix, kind in self.families:
            if re.fullmatch(re.escape(prefix) + r"\d+", name):
                self.scopes[0][name] = key = f"R_{identifier(name)}"
                self.registers[key] = kind
                return key
        return None

    def register(self, name: str) -> str:
        """Return the C++ name of a register. Raise PtxError for another name."""
        key = self.lookup(name)
        if key is None or key not in self.registers:
            raise PtxError(f"{name} is not a register")
        return key

    def symbol(self, name: str) -> tuple[str, str] | None:
        """Return a variable's space and address."""
        key = self.lookup(name)
        return self.spaces.get(key) if key is not None else self.variable(name)

    def read(self, operand: str, kind: str) -> str:
        """Return an operand's value, of PTX's type `kind`."""
        name = operand.lstrip("!").strip()
        to = TYPES[kind]
        if re.match(r"-?\d", name):
            if kind in FLOATS:
                return f"bits<{to}>(uint{8 * width(kind)}_t({literal(name)}))"
            return f"static_cast<{to}>({literal(name)})"
        if name in SPECIAL:
            return f"static_cast<{to}>({SPECIAL[name]})"
        key = self.lookup(name)
        if key in self.registers:
            return f"{'!' * operand.startswith('!')}{key}" if kind == "pred" else f"as<{to}>({key})"
        symbol = self.symbol(name)
        if symbol is None:
            raise PtxError(f"unknown operand {operand}")
        address = f"reinterpret_cast<uint64_t>({symbol[1]})" if symbol[0] == "param" else symbol[1]
        return f"static_cast<{to}>({address})"

    def write(self, operand: str, value: str) -> str:
        if operand == "_":
            return f"(void) ({value});"
        name = self.register(operand)
        kind = self.registers[name]
        return f"{name} = {value};" if kind == "bool" else f"{name} = word<{kind}>({value});"

    def address(self, operand: str, space: str) -> str:
        """Return `[base + offset]` as a pointer to bytes."""
        text = operand.strip()[1:-1].strip()
        found = re.fullmatch(r"([$%\w]+)\s*(?:\+\s*(-?\w+))?", text)
        if found is None:
            raise PtxError(f"not an address: {operand}")
        base, offset = found[1], int(found[2] or "0", 0)
        symbol = self.symbol(base)
        if symbol is not None:
            where, start = symbol
            if where == "param":
                return f"const_cast<char *>({start} + {offset})"
            if where == "shared":
                return f"(L.block->shared + {start} + {offset})"
            return f"(reinterpret_cast<char *>({start}) + {offset})"
        value = self.read(base, "u64")
        if space == "shared":
            return f"(L.block->shared + static_cast<uint64_t>({value} + {offset}ll))"
        if space in ("local", "const"):
            return f"reinterpret_cast<char *>({value} + {offset}ll)"
        return f"at(L, {value} + {offset}ll)"


Translator = Callable[[Place, list[str], list[str]], str]
"""Gets an instruction's place, the operation's parts behind the first dot, and the operands."""
INSTRUCTIONS: dict[str, Translator] = {}
"""The instructions of arithmetic.py, choosing.py, memory.py and threads.py."""


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
    return "Round::rz" if "rz" in parts else "Round::rn"


def one_of(parts: list[str], known: Collection[str]) -> str:
    """Return the first part that is known. Raise PtxError if there is none."""
    found = next((part for part in parts if part in known), None)
    if found is None:
        raise PtxError(f"none of {', '.join(known)}")
    return found


def check(parts: list[str], known: Collection[str] = ()) -> None:
    """Raise PtxError for an unknown part, which would change the result."""
    left = [p for p in parts if p not in known and p not in IGNORED and p not in TYPES]
    if left:
        raise PtxError(f"unknown: .{left[0]}")


def form(code: str, *kinds: str, known: str = "") -> Translator:
    """Translate an instruction to an expression of C++.

    In `code`, 0, 1, … are the operands behind the first, `type` and `round` are the operation's, and each of
    the `known` parts is true if the operation has it. `kinds` are the operands' types, or "" for its own. An
    operation on two halves is done for each. Floats are limited to 0 … 1 if the operation saturates.
    """

    def make(at: Place, parts: list[str], operands: list[str]) -> str:
        check(parts, known.split())
        kind = kind_of(parts)
        named = {part: str(part in parts).lower() for part in known.split()}
        named |= {"type": TYPES[HALVES.get(kind, kind)], "round": round_of(parts)}
        d, *rest = operands
        values = [at.read(x, of or kind) for x, of in itertools.zip_longest(rest, kinds[: len(rest)])]
        if kind in HALVES:
            half = HALVES[kind]
            function = f"[]({half} a, {half} b, {half} c) {{ return {code.format(*'abc', **named)}; }}"
            return at.write(d, f"by_halves<{half}>({', '.join([function, *values])})")
        value = code.format(*values, **named)
        return at.write(d, f"saturate({value})" if "sat" in parts and kind in FLOATS else value)

    return make

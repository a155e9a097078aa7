"""Translate PTX's operands to C++: registers, numbers, special registers and addresses. Name its types in
C++.

It also has the table of instructions that can be translated, and the functions that all of them share."""

from __future__ import annotations

import re
from collections.abc import Callable

from .module import PtxError

TYPES = {
    **{f"{s}{n}": f"{'' if s == 's' else 'u'}int{n}_t" for s in "sub" for n in (8, 16, 32, 64)},
    **{name: name for name in ("f16", "bf16", "f32", "f64")},
    "f16x2": "uint32_t",
    "bf16x2": "uint32_t",
    "pred": "bool",
}
HALVES = {"f16x2": "f16", "bf16x2": "bf16"}
WIDE = {"s16": "s32", "u16": "u32", "s32": "s64", "u32": "u64"}
SPECIAL = {
    **{f"%tid.{i}": f"L.tid.{i}" for i in "xyz"},
    **{f"%ctaid.{i}": f"L.block->id.{i}" for i in "xyz"},
    **{f"%ntid.{i}": f"L.block->launch->block.{i}" for i in "xyz"},
    **{f"%nctaid.{i}": f"L.block->launch->grid.{i}" for i in "xyz"},
    "%laneid": "static_cast<uint32_t>(L.number)",
    "%warpid": "static_cast<uint32_t>(L.warp - L.block->warps)",
    "%lanemask_eq": "(1u << L.number)",
    "%lanemask_lt": "((1u << L.number) - 1)",
    "%lanemask_le": "((2u << L.number) - 1)",
    "%lanemask_gt": "~((2u << L.number) - 1)",
    "%lanemask_ge": "~((1u << L.number) - 1)",
    "%dynamic_smem_size": "static_cast<uint32_t>(L.block->launch->shared)",
    "%clock": "0u",
    "%clock64": "0ull",
    "%globaltimer": "0ull",
    "%smid": "0u",
    "%nsmid": "1u",
}
ROUNDS = {"rz": "Round::rz", "rm": "Round::rm", "rp": "Round::rp"}
WHOLES = {"rni": "Whole::near", "rzi": "Whole::zero", "rmi": "Whole::down", "rpi": "Whole::up"}
# Parts that change nothing here.
IGNORED = {
    "ftz", "rn", "approx", "full", "uni", "sync", "aligned", "cta", "gpu", "sys", "volatile", "weak",
    "relaxed", "acquire", "release", "acq_rel", "nc", "noftz", "mmio", "ca", "cg", "cs", "cv", "wb", "wt",
    "lu", "sc",
}  # fmt: skip


class Place:
    """The place of an instruction, which gives its operands their meaning."""

    def lookup(self, name: str) -> str | None:
        """Return the C++ name of a register, or the key of another variable."""
        raise NotImplementedError

    def word_type(self, name: str) -> str:
        raise NotImplementedError

    def symbol(self, name: str) -> tuple[str, str] | None:
        """Return a variable's space and address."""
        raise NotImplementedError

    def label(self, name: str) -> str:
        raise NotImplementedError

    def call(self, operands: list[str]) -> str:
        raise NotImplementedError

    targets: dict[str, list[str]]

    def read(self, operand: str, kind: str) -> str:
        """Return an operand's value, of PTX's type `kind`."""
        negated = operand.startswith("!")
        name = operand.lstrip("!").strip()
        to = TYPES[kind]
        if re.match(r"-?\d", name):
            return self.number(name, kind)
        if name in SPECIAL:
            return f"static_cast<{to}>({SPECIAL[name]})"
        if name.startswith("%envreg"):
            return f"{to}{{0}}"
        key = self.lookup(name)
        if key is not None and not self._is_variable(name):
            if kind == "pred":
                return f"{'!' if negated else ''}{key}"
            return f"as<{to}>({key})"
        symbol = self.symbol(name)
        if symbol is None:
            raise PtxError(f"unknown operand {operand}")
        address = f"reinterpret_cast<uint64_t>({symbol[1]})" if symbol[0] == "param" else symbol[1]
        return f"static_cast<{to}>({address})"

    def _is_variable(self, name: str) -> bool:
        key = self.lookup(name)
        try:
            return key is not None and self.word_type(name) == ""
        except PtxError:
            return True

    @staticmethod
    def number(text: str, kind: str) -> str:
        to = TYPES[kind]
        if text[:2] in ("0f", "0F"):
            value = f"0x{text[2:]}u"
            return f"bits<f32>({value})" if kind == "f32" else f"static_cast<{to}>({value})"
        if text[:2] in ("0d", "0D"):
            value = f"0x{text[2:]}ull"
            return f"bits<f64>(uint64_t{{{value}}})" if kind == "f64" else f"static_cast<{to}>({value})"
        value = int(text.rstrip("U"), 0)
        if kind in ("f16", "bf16"):
            return f"bits<{to}>(uint16_t({value}))"
        return (
            f"static_cast<{to}>({value}ll)"
            if -(1 << 63) <= value < 1 << 63
            else f"static_cast<{to}>({value}ull)"
        )

    def write(self, operand: str, value: str) -> str:
        if operand == "_":
            return f"(void) ({value});"
        kind = self.word_type(operand)
        name = self.lookup(operand)
        return f"{name} = {value};" if kind == "bool" else f"{name} = word<{kind}>({value});"

    def address(self, operand: str, space: str) -> str:
        """Return `[base + offset]` as a pointer to bytes."""
        text = operand.strip()[1:-1].strip()
        found = re.fullmatch(r"([$%\w]+)\s*(?:\+\s*(-?\w+))?", text)
        if found is None:
            raise PtxError(f"not an address: {operand}")
        base, offset = found[1], int(found[2] or "0", 0)
        symbol = None if base.startswith("%") and not self._is_variable(base) else self.symbol(base)
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
    return next((ROUNDS[part] for part in parts if part in ROUNDS), "Round::rn")


def check(parts: list[str], known: set[str]) -> None:
    """Raise PtxError for an unknown part, which would change the result."""
    left = [p for p in parts if p not in known and p not in IGNORED and p not in TYPES and p not in ROUNDS]
    if left:
        raise PtxError(f"unknown: .{left[0]}")

"""Translate branches, calls, and operations of several threads: barriers, shuffles, votes, matrices."""

from __future__ import annotations

import re

from .memory import ATOMIC, space_of
from .module import PtxError, split
from .operands import INSTRUCTIONS, TYPES, Place, Translator, check, form, instruction, kind_of, label, one_of


def statement(code: str) -> Translator:
    """Translate an instruction to a statement that ignores its operands."""
    return lambda at, parts, operands: code


INSTRUCTIONS |= {
    "ret": statement("return;"),
    "exit": statement("end(L);"),
    "trap": statement('stop(L, "a trap");'),
    "membar": statement("std::atomic_thread_fence(std::memory_order_seq_cst);"),
    "fence": statement("std::atomic_thread_fence(std::memory_order_seq_cst);"),
    **dict.fromkeys(("nanosleep", "griddepcontrol", "prefetch", "pragma"), statement("")),
    "activemask": form("(there(*L.warp, ~0u) & ~L.warp->done)"),
    "match": form("match_any(L, {0}, {1})", "", "u32", known="any"),
    "movmatrix": form("transpose(L, {0})", "b32", known="m8n8 trans"),
}


@instruction("bra")
def bra(at: Place, parts: list[str], operands: list[str]) -> str:
    return f"goto {label(operands[0])};"


@instruction("brx")
def brx(at: Place, parts: list[str], operands: list[str]) -> str:
    cases = "".join(f"case {i}: goto {label(name)}; " for i, name in enumerate(at.targets[operands[1]]))
    return f"switch ({at.read(operands[0], 'u32')}) {{ {cases}}}"


@instruction("bar", "barrier")
def bar(at: Place, parts: list[str], operands: list[str]) -> str:
    if "warp" in parts:
        return f"sync_warp(L, {at.read(operands[0], 'u32')});"
    if len(operands) > (3 if "red" in parts else 1):
        raise PtxError("a barrier of a part of the block")
    if one_of(parts, ("red", "sync")) == "sync":
        return "sync_block(L);"
    votes = f"sync_block(L, {at.read(operands[-1], 'pred')})"
    value = {"and": f"{votes} == L.block->n - L.block->n_done", "or": f"{votes} != 0", "popc": votes}
    return at.write(operands[0], value[one_of(parts, value)])


@instruction("shfl")
def shfl(at: Place, parts: list[str], operands: list[str]) -> str:
    mode = one_of(parts, ("up", "down", "bfly", "idx"))
    d, a, b, c, mask = operands
    first, _, second = d.partition("|")
    values = ", ".join(at.read(o, "b32") for o in (a, b, c, mask))
    code = f"bool inside = false; const uint32_t v = shuffle(L, Shuffle::{mode}, {values}, &inside); "
    return code + at.write(first, "v") + (at.write(second, "inside") if second else "")


@instruction("vote")
def vote(at: Place, parts: list[str], operands: list[str]) -> str:
    d, a, mask = operands
    lanes = at.read(mask, "u32")
    votes = f"const uint32_t votes = ballot(L, {at.read(a, 'pred')}, {lanes}); "
    votes += f"const uint32_t all = there(*L.warp, {lanes}) & ~L.warp->done; "
    value = {"ballot": "votes", "any": "votes != 0", "all": "votes == all"}
    return votes + at.write(d, value[one_of(parts, value)])


@instruction("redux")
def redux(at: Place, parts: list[str], operands: list[str]) -> str:
    kind = kind_of(parts)
    to = TYPES[kind]
    d, a, mask = operands
    name = one_of(parts, ATOMIC)
    combine = f"[]({to} old, {to} b) {{ return static_cast<{to}>({ATOMIC[name]}); }}"
    return at.write(d, f"reduce<{to}>(L, {at.read(a, kind)}, {at.read(mask, 'u32')}, {combine})")


MATRIX_TYPES = {
    "f16": "f16", "bf16": "bf16", "tf32": "tf32", "f32": "f32",
    "s8": "int8_t", "u8": "uint8_t", "s32": "int32_t",
}  # fmt: skip


@instruction("mma")
def mma(at: Place, parts: list[str], operands: list[str]) -> str:
    known = re.fullmatch(r"sync\.aligned\.m(\d+)n8k(\d+)\.row\.col\.(\w+)\.(\w+)\.(\w+)\.\3", ".".join(parts))
    if known is None:
        raise PtxError("unknown form of mma")
    m, k, *kinds = known.groups()
    c_kind, a_kind, b_kind = (MATRIX_TYPES[kind] for kind in kinds)
    lists = [split(operand.strip("{} ")) for operand in operands]
    code = ""
    for name, values in zip("abc", lists[1:], strict=True):
        code += f"const uint32_t {name}[] = {{{', '.join(at.read(value, 'b32') for value in values)}}}; "
    code += f"uint32_t d[{len(lists[0])}]; multiply<{a_kind}, {b_kind}, {c_kind}, {m}, {k}>(L, a, b, c, d); "
    return code + "".join(at.write(name, f"d[{i}]") for i, name in enumerate(lists[0]))


@instruction("ldmatrix")
def ldmatrix(at: Place, parts: list[str], operands: list[str]) -> str:
    check(parts, {"m8n8", "x1", "x2", "x4", "trans", "shared", "shared__cta", "b16"})
    names = split(operands[0].strip("{} "))
    address = at.address(operands[1], space_of(parts) or "local")  # "local": a generic address
    offset = f"static_cast<uint64_t>({address} - L.block->shared)"
    transposed = str("trans" in parts).lower()
    code = f"uint32_t d[4]; load_matrices(L, {offset}, {len(names)}, {transposed}, d); "
    return code + "".join(at.write(name, f"d[{i}]") for i, name in enumerate(names))

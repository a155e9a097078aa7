"""Translate branches, calls, and operations of several threads: barriers, shuffles, votes, matrices."""

from __future__ import annotations

import re

from .memory import ATOMIC, space_of
from .module import PtxError, split
from .operands import TYPES, Place, check, instruction, kind_of


@instruction("bra")
def bra(at: Place, parts: list[str], operands: list[str]) -> str:
    return f"goto {at.label(operands[0])};"


@instruction("brx")
def brx(at: Place, parts: list[str], operands: list[str]) -> str:
    cases = "".join(f"case {i}: goto {at.label(name)}; " for i, name in enumerate(at.targets[operands[1]]))
    return f"switch ({at.read(operands[0], 'u32')}) {{ {cases}}}"


@instruction("ret")
def ret(at: Place, parts: list[str], operands: list[str]) -> str:
    return "return;"


@instruction("exit")
def leave(at: Place, parts: list[str], operands: list[str]) -> str:
    return "end(L);"


@instruction("trap")
def trap(at: Place, parts: list[str], operands: list[str]) -> str:
    return 'stop(L, "a trap");'


@instruction("call")
def call(at: Place, parts: list[str], operands: list[str]) -> str:
    return at.call(operands)


@instruction("membar", "fence")
def fence(at: Place, parts: list[str], operands: list[str]) -> str:
    return "std::atomic_thread_fence(std::memory_order_seq_cst);"


@instruction(
    "nanosleep",
    "griddepcontrol",
    "prefetch",
    "prefetchu",
    "pragma",
    "discard",
    "applypriority",
)
def nothing(at: Place, parts: list[str], operands: list[str]) -> str:
    return ""


@instruction("bar", "barrier")
def bar(at: Place, parts: list[str], operands: list[str]) -> str:
    if "warp" in parts:
        return f"sync_warp(L, {at.read(operands[0], 'u32')});"
    if "red" in parts:
        d, _, vote = operands[0], operands[1], operands[-1]
        if len(operands) > 3:
            raise PtxError("a barrier of a part of the block")
        votes = f"sync_block(L, {at.read(vote, 'pred')})"
        alive = "(L.block->n - L.block->n_done)"
        value = {"and": f"{votes} == {alive}", "or": f"{votes} != 0", "popc": votes}
        return at.write(d, value[next(part for part in parts if part in value)])
    if "sync" not in parts or len(operands) > 1:
        raise PtxError("a barrier of a part of the block")
    return "sync_block(L);"


@instruction("shfl")
def shfl(at: Place, parts: list[str], operands: list[str]) -> str:
    mode = next(part for part in parts if part in ("up", "down", "bfly", "idx"))
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
    value = {
        "ballot": "votes",
        "any": "votes != 0",
        "all": "votes == all",
        "uni": "(votes == 0 || votes == all)",
    }
    return votes + at.write(d, value[next(part for part in parts if part in value)])


@instruction("match")
def match(at: Place, parts: list[str], operands: list[str]) -> str:
    if "any" not in parts:
        raise PtxError("unknown form of match")
    d, a, mask = operands
    return at.write(d, f"match_any(L, {at.read(a, kind_of(parts))}, {at.read(mask, 'u32')})")


@instruction("activemask")
def activemask(at: Place, parts: list[str], operands: list[str]) -> str:
    return at.write(operands[0], "(there(*L.warp, ~0u) & ~L.warp->done)")


@instruction("redux")
def redux(at: Place, parts: list[str], operands: list[str]) -> str:
    kind = kind_of(parts)
    to = TYPES[kind]
    d, a, mask = operands
    name = next(part for part in parts if part in ATOMIC)
    combine = f"[]({to} old, {to} b) {{ return static_cast<{to}>({ATOMIC[name]}); }}"
    return at.write(d, f"reduce<{to}>(L, {at.read(a, kind)}, {at.read(mask, 'u32')}, {combine})")


MATRIX_TYPES = {
    "f16": "f16",
    "bf16": "bf16",
    "tf32": "tf32",
    "s8": "int8_t",
    "u8": "uint8_t",
    "f32": "f32",
    "s32": "int32_t",
}


@instruction("mma")
def mma(at: Place, parts: list[str], operands: list[str]) -> str:
    shape = next(re.fullmatch(r"m(\d+)n8k(\d+)", part) for part in parts if part.startswith("m"))
    kinds = [part for part in parts if part in MATRIX_TYPES]
    if (
        shape is None
        or len(kinds) != 4
        or parts[parts.index("row") + 1] != "col"
        or set(parts) & {"sp", "kind", "satfinite"}
    ):
        raise PtxError("unknown form of mma")
    d_kind, a_kind, b_kind, c_kind = (MATRIX_TYPES[kind] for kind in kinds)
    if d_kind != c_kind:
        raise PtxError("unknown form of mma")
    lists = [split(operand.strip("{} ")) for operand in operands]
    code = ""
    for name, values in zip("abc", lists[1:], strict=True):
        code += f"const uint32_t {name}[] = {{{', '.join(at.read(value, 'b32') for value in values)}}}; "
    form = f"{a_kind}, {b_kind}, {c_kind}, {shape[1]}, {shape[2]}"
    code += f"uint32_t d[{len(lists[0])}]; multiply<{form}>(L, a, b, c, d); "
    return code + "".join(at.write(name, f"d[{i}]") for i, name in enumerate(lists[0]))


@instruction("ldmatrix")
def ldmatrix(at: Place, parts: list[str], operands: list[str]) -> str:
    check(parts, {"m8n8", "x1", "x2", "x4", "trans", "shared", "shared__cta", "b16"})
    names = split(operands[0].strip("{} "))
    address = at.address(operands[1], "shared")
    if space_of(parts) == "":  # a generic address
        address = at.address(operands[1], "local")
    offset = f"static_cast<uint64_t>({address} - L.block->shared)"
    transposed = str("trans" in parts).lower()
    code = f"uint32_t d[4]; load_matrices(L, {offset}, {len(names)}, {transposed}, d); "
    return code + "".join(at.write(name, f"d[{i}]") for i, name in enumerate(names))


@instruction("movmatrix")
def movmatrix(at: Place, parts: list[str], operands: list[str]) -> str:
    return at.write(operands[0], f"transpose(L, {at.read(operands[1], 'b32')})")


@instruction("isspacep")
def isspacep(at: Place, parts: list[str], operands: list[str]) -> str:
    if parts[0] != "shared":
        raise PtxError("unknown form of isspacep")
    return at.write(
        operands[0],
        f"{at.read(operands[1], 'u64')} - reinterpret_cast<uint64_t>(L.block->shared) < (227ull << 10)",
    )

"""These tests compare translated PTX instructions of one thread (ptx/) with numpy."""

from __future__ import annotations

import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tools.cuda_host.ptx.launch import Kernel, kernels

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="fibers are written for x86-64")

HEAD = ".version 9.0\n.target sm_80\n.address_size 64\n"
WORD = {np.dtype(t): s for t, s in (("u1", "b8"), ("u2", "b16"), ("u4", "b32"), ("u8", "b64"))}
N = 64


def elementwise(name: str, code: str, inputs: list[np.dtype], output: np.dtype) -> str:
    """Return a kernel whose thread i computes d from a[i], b[i], c[i], in registers %a, %b, %c and %d."""
    arrays = [*zip("abc", inputs, strict=False), ("d", output)]
    word = {letter: WORD[np.dtype(f"u{kind.itemsize}")] for letter, kind in arrays}
    register = {letter: kind if kind != "b8" else "b16" for letter, kind in word.items()}
    lines = [f".reg .{register[letter]} %{letter};" for letter, _ in arrays]
    for letter, kind in arrays:
        lines += [
            f"ld.param.u64 %rd1, [{name}_{letter}];",
            f"mad.wide.u32 %at_{letter}, %r1, {kind.itemsize}, %rd1;",
        ]
        if letter != "d":
            lines.append(f"ld.global.{word[letter]} %{letter}, [%at_{letter}];")
    body = "\n".join(lines)
    params = ", ".join(f".param .u64 {name}_{letter}" for letter, _ in arrays)
    return f"""{HEAD}.visible .entry {name}({params}) {{
.reg .pred %p<8>; .reg .b32 %r<8>; .reg .b64 %rd<8>; .reg .b64 %at_a, %at_b, %at_c, %at_d;
mov.u32 %r1, %tid.x;
{body}
{code}
st.global.{word["d"]} [%at_d], %d;
ret;
}}
"""


def random_of(kind: np.dtype, rng: np.random.Generator) -> np.ndarray:
    if kind.kind == "f":
        values = rng.normal(size=N) * np.exp2(rng.integers(-6, 6, N))
        return values.astype(kind)
    info = np.iinfo(kind)
    values = rng.integers(info.min, info.max, N, dtype=kind, endpoint=True)
    values[:6] = [0, 1, info.max, info.min, 2, info.max - 1]
    return values


def exact(x: np.ndarray) -> np.ndarray:
    return x.astype(object)  # Python's integers have no limits


def octets(x: np.ndarray) -> np.ndarray:
    return x.view("i1").reshape(N, 4).astype("i8")


def wrapped(x: Any, kind: np.dtype) -> np.ndarray:
    bits = 8 * kind.itemsize
    return np.array([int(v) & ((1 << bits) - 1) for v in x], np.dtype(f"u{kind.itemsize}")).view(kind)


I1, I2, I4, I8, U2, U4, F2, F4 = (np.dtype(t) for t in ("i1", "i2", "i4", "i8", "u2", "u4", "f2", "f4"))
FINITE = 0xBFFFBFFF  # this mask keeps two halves below infinity
Case = tuple[str, list[np.dtype], np.dtype, Callable[..., Any]]
CASES: dict[str, Case] = {
    "add": ("add.s32 %d, %a, %b;", [I4, I4], I4, lambda a, b: wrapped(exact(a) + exact(b), I4)),
    "add_sat": (
        "add.sat.s32 %d, %a, %b;", [I4, I4], I4,
        lambda a, b: np.clip(a.astype("i8") + b, -(2**31), 2**31 - 1),
    ),
    "mul_hi": ("mul.hi.u32 %d, %a, %b;", [U4, U4], U4, lambda a, b: a.astype("u8") * b >> 32),
    "mul_hi_signed": (
        "mul.hi.s64 %d, %a, %b;", [I8, I8], I8, lambda a, b: wrapped(exact(a) * exact(b) // 2**64, I8)
    ),
    "mul_wide": ("mul.wide.s32 %d, %a, %b;", [I4, I4], I8, lambda a, b: a.astype("i8") * b),
    "mad": (
        "mad.lo.s32 %d, %a, %b, %c;", [I4] * 3, I4,
        lambda a, b, c: wrapped(exact(a) * exact(b) + exact(c), I4),
    ),
    "mul_short": ("mul.lo.s16 %d, %a, %b;", [I2, I2], I2, lambda a, b: wrapped(exact(a) * exact(b), I2)),
    "shift_far": (
        "and.b32 %r2, %b, 63; shr.s32 %d, %a, %r2;", [I4, U4], I4,
        lambda a, b: a >> np.minimum(b & 63, 31).astype(I4),
    ),
    "shift_left": (
        "and.b32 %r2, %b, 63; shl.b32 %d, %a, %r2;", [U4, U4], U4,
        lambda a, b: wrapped([int(x) << (int(y) & 63) for x, y in zip(a, b, strict=True)], U4),
    ),
    "bytes": ("cvt.s32.s8 %d, %a;", [I4], I4, lambda a: a.astype("i1")),
    "unsigned_to_float": ("cvt.rn.f32.u32 %d, %a;", [U4], F4, lambda a: a.astype(F4)),
    "float_to_int": (
        "mul.f32 %a, %a, 0f501502F9; cvt.rzi.s32.f32 %d, %a;", [F4], I4,
        lambda a: np.clip(np.trunc(a * np.float32(1e10)).astype("f8"), -(2**31), 2**31 - 1).astype("i8"),
    ),
    "nearest": ("cvt.rni.s32.f32 %d, %a;", [F4], I4, lambda a: np.rint(a)),
    "half": ("cvt.rn.f16.f32 %d, %a;", [F4], F2, lambda a: a.astype(F2)),
    "from_half": ("cvt.f32.f16 %d, %a;", [F2], F4, lambda a: a.astype(F4)),
    "bfloat": (
        "cvt.rn.bf16.f32 %d, %a;", [F4], U2,
        lambda a: (a.view(U4) + 0x7FFF + (a.view(U4) >> 16 & 1)) >> 16,
    ),
    "half_pair": (
        "cvt.rn.f16x2.f32 %d, %a, %b;", [F4, F4], U4,
        lambda a, b: a.astype(F2).view(U2).astype(U4) << 16 | b.astype(F2).view(U2),
    ),
    "half_add": ("add.f16 %d, %a, %b;", [F2, F2], F2, lambda a, b: a + b),
    "half_fma": (
        f"and.b32 %a, %a, {FINITE}; and.b32 %b, %b, {FINITE}; fma.rn.f16x2 %d, %a, %a, %b;", [U4, U4], U4,
        lambda a, b: ((a & FINITE).view(F2).astype("f8") ** 2 + (b & FINITE).view(F2)).astype(F2).view(U4),
    ),
    "fma": (
        "fma.rn.f32 %d, %a, %b, %c;", [F4] * 3, F4,
        lambda a, b, c: (a.astype(np.longdouble) * b + c).astype(F4),
    ),
    "toward_zero": (
        "add.rz.f32 %d, %a, %b;", [F4, F4], F4, lambda a, b: toward_zero(a.astype("f8") + b)
    ),
    "minimum_number": (
        "setp.lt.f32 %p1, %a, 0f00000000; selp.f32 %a, 0f7FC00000, %a, %p1; min.f32 %d, %a, %b;",
        [F4, F4], F4,
        lambda a, b: np.where(a < 0, b, np.minimum(a, b)),
    ),
    "prmt": ("prmt.b32 %d, %a, %b, 0x96E1;", [U4, U4], U4, lambda a, b: permuted(a, b, (1, 0xE, 6, 9))),
    "lop3": ("lop3.b32 %d, %a, %b, %c, 0xCA;", [U4] * 3, U4, lambda a, b, c: (a & b) | (~a & c)),
    "bfe": ("bfe.s32 %d, %a, 5, 7;", [I4], I4, lambda a: (a << 20) >> 25),
    "bfi": ("bfi.b32 %d, %a, %b, 4, 28;", [U4, U4], U4, lambda a, b: (a << 4) | (b & 15)),
    "bmsk": ("bmsk.clamp.b32 %d, 3, 5;", [], U4, lambda: np.full(N, 0xF8)),
    "popc": ("popc.b32 %d, %a;", [U4], U4, lambda a: [int(x).bit_count() for x in a]),
    "clz": ("clz.b32 %d, %a;", [U4], U4, lambda a: [32 - int(x).bit_length() for x in a]),
    "brev": ("brev.b32 %d, %a;", [U4], U4, lambda a: [int(f"{int(x):032b}"[::-1], 2) for x in a]),
    "funnel": ("shf.l.wrap.b32 %d, %a, %b, 8;", [U4, U4], U4, lambda a, b: b << 8 | a >> 24),
    "dp4a": (
        "dp4a.s32.s32 %d, %a, %b, %c;", [U4, U4, I4], I4,
        lambda a, b, c: wrapped(exact((octets(a) * octets(b)).sum(1)) + exact(c), I4),
    ),
    "compare_unordered": (
        "setp.gtu.f32 %p1, %a, %b; selp.u32 %d, 1, 0, %p1;", [F4, F4], U4, lambda a, b: ~(a <= b)
    ),
    "compare_and": (
        "setp.lt.s32 %p1, %b, 0; setp.gt.and.s32 %p2, %a, 0, !%p1; selp.u32 %d, 7, 9, %p2;", [I4, I4], U4,
        lambda a, b: np.where((a > 0) & (b >= 0), 7, 9),
    ),
    "guarded": (
        "setp.lt.s32 %p1, %a, 0; mov.u32 %d, 5; @%p1 mov.u32 %d, 6; @!%p1 bra OVER; "
        "add.u32 %d, %d, 10; OVER:",
        [I4], U4, lambda a: np.where(a < 0, 16, 5),
    ),
    "halves_moved": (
        "{ .reg .b16 low, high; mov.b32 {low, high}, %a; mov.b32 %d, {high, low}; }", [U4], U4,
        lambda a: a << 16 | a >> 16,
    ),
    "divided": ("div.s32 %d, %a, 7;", [I4], I4, lambda a: np.trunc(a / 7)),
    "remainder": ("rem.u32 %d, %a, 7;", [U4], U4, lambda a: a % 7),
    "copysign": ("copysign.f32 %d, %a, %b;", [F4, F4], F4, lambda a, b: np.copysign(b, a)),
    "table": (
        "and.b32 %r2, %a, 3; ts: .branchtargets A0, A1, A2, A3; brx.idx %r2, ts; A0: mov.u32 %d, 4; bra END; "
        "A1: mov.u32 %d, 8; bra END; A2: mov.u32 %d, 15; bra END; A3: mov.u32 %d, 16; END:", [U4], U4,
        lambda a: np.array([4, 8, 15, 16])[a & 3],
    ),
}  # fmt: skip


def toward_zero(exact: np.ndarray) -> np.ndarray:
    near = exact.astype(F4)
    return np.where(np.abs(near) > np.abs(exact), np.nextafter(near, F4.type(0)), near)


def permuted(a: np.ndarray, b: np.ndarray, selectors: tuple[int, ...]) -> np.ndarray:
    both = np.concatenate([a.view("u1").reshape(N, 4), b.view("u1").reshape(N, 4)], axis=1)
    chosen = [both[:, s & 7] if s < 8 else np.where(both[:, s & 7] >= 128, 255, 0) for s in selectors]
    return np.stack(chosen, axis=1).astype("u1").view(U4)[:, 0]


@pytest.fixture(scope="module")
def of_cases(precompiled: Path) -> dict[str, Kernel]:
    texts = {name: elementwise(name, *case[:3]) for name, case in CASES.items()}
    return kernels(texts, precompiled.parent)


@pytest.mark.parametrize("name", CASES)
def test_an_instruction_is_what_numpy_says(name: str, of_cases: dict[str, Kernel]) -> None:
    _, inputs, output, expected = CASES[name]
    rng, kernel = np.random.default_rng(3), of_cases[name]
    values = [random_of(kind, rng) for kind in inputs]
    found = np.zeros(N, output)
    copies = [value.copy() for value in values]
    assert kernel.unknown == []
    assert kernel(*copies, found, block=(N,)) == []
    wanted = np.asarray(expected(*values)).astype(output)
    np.testing.assert_array_equal(found, wanted)

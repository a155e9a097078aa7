"""Translated PTX (ptx/) computes what threads do together. PTX without a meaning is reported."""

from __future__ import annotations

import platform
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tools.cuda_host.ptx.launch import Kernel, kernels
from tools.cuda_host.tests.test_ptx import F2, F4, HEAD, I1, I4, U2, U4, N, elementwise

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="fibers are written for x86-64")


def kernel_of(text: str, folder: Path) -> Kernel:
    return kernels({"k": text}, folder)["k"]


def folder_of(precompiled: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the precompiled header."""
    folder = tmp_path_factory.mktemp("warps")
    (folder / precompiled.name).symlink_to(precompiled)
    return folder


def warp_kernel(name: str, code: str, n_inputs: int = 1) -> str:
    return elementwise(name, code, [U4] * n_inputs, U4)


SHUFFLES: dict[str, tuple[str, Callable[[int], int]]] = {
    "bfly": ("bfly.b32 %d|%p1, %a, 5, 0x1F", lambda i: i ^ 5),
    "up": ("up.b32 %d|%p1, %a, 3, 0", lambda i: i - 3 if i >= 3 else i),
    "down": ("down.b32 %d|%p1, %a, 3, 0x1F", lambda i: i + 3 if i + 3 < 32 else i),
    "idx": ("idx.b32 %d|%p1, %a, 9, 0x1F", lambda _: 9),
    "down_in_groups_of_eight": ("down.b32 %d|%p1, %a, 2, 0x181F", lambda i: i + 2 if i % 8 + 2 < 8 else i),
    "up_in_groups_of_eight": ("up.b32 %d|%p1, %a, 2, 0x1800", lambda i: i - 2 if i % 8 >= 2 else i),
}


@pytest.fixture(scope="module")
def shuffles(precompiled: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Kernel]:
    texts = {name: warp_kernel(name, f"shfl.sync.{code}, -1;") for name, (code, _) in SHUFFLES.items()}
    return kernels(texts, folder_of(precompiled, tmp_path_factory))


@pytest.mark.parametrize("name", SHUFFLES)
def test_a_shuffle_brings_the_other_lanes_value(name: str, shuffles: dict[str, Kernel]) -> None:
    kernel, source = shuffles[name], SHUFFLES[name][1]
    values, found = np.arange(100, 100 + N, dtype=U4), np.zeros(N, U4)
    assert kernel(values, found, block=(N,)) == []
    wanted = [values[i - i % 32 + source(i % 32)] for i in range(N)]
    np.testing.assert_array_equal(found, wanted)


def test_votes_and_sums_of_a_warp(ptx_folder: Path) -> None:
    code = """setp.gt.u32 %p1, %a, 40; vote.sync.ballot.b32 %r2, %p1, -1; redux.sync.add.s32 %r3, %a, -1;
              vote.sync.any.pred %p2, %p1, -1; selp.u32 %r4, 1, 0, %p2; match.any.sync.b32 %r5, %r4, -1;
              xor.b32 %r2, %r2, %r3; xor.b32 %r2, %r2, %r5; add.u32 %d, %r2, %r4;"""
    kernel = kernel_of(warp_kernel("k", code), ptx_folder)
    values, found = np.arange(N, dtype=U4), np.zeros(N, U4)
    assert kernel(values, found, block=(N,)) == []
    for w in range(2):
        part = values[32 * w : 32 * w + 32]
        ballot = sum(1 << i for i in range(32) if part[i] > 40)
        expected = (ballot ^ int(part.sum()) ^ 0xFFFFFFFF) + int(ballot != 0)
        assert set(found[32 * w : 32 * w + 32]) == {expected & 0xFFFFFFFF}


def test_half_a_warp_may_go_its_own_way(ptx_folder: Path) -> None:
    code = """setp.lt.u32 %p1, %r1, 16; @%p1 bra LOW;
              shfl.sync.bfly.b32 %d, %a, 1, 31, 0xFFFF0000; shfl.sync.bfly.b32 %d, %d, 2, 31, 0xFFFF0000;
              shfl.sync.bfly.b32 %d, %d, 4, 31, 0xFFFF0000; bra BOTH;
              LOW: shfl.sync.bfly.b32 %d, %a, 8, 31, 0x0000FFFF;
              BOTH: bar.warp.sync -1; shfl.sync.bfly.b32 %d, %d, 16, 31, -1;"""
    kernel = kernel_of(warp_kernel("k", code), ptx_folder)
    values, found = np.arange(32, dtype=U4), np.zeros(32, U4)
    assert kernel(values, found, block=(32,)) == []
    wanted = [values[(i ^ 16) ^ 7] if i < 16 else values[(i ^ 16) ^ 8] for i in range(32)]
    np.testing.assert_array_equal(found, wanted)


SUM = f"""{HEAD}
.extern .shared .align 16 .b8 dynamic[];
.visible .entry k(.param .u64 k_in, .param .u64 k_out, .param .u32 k_n) {{
.reg .pred %p<4>; .reg .b32 %r<16>; .reg .b64 %rd<8>;
.shared .align 4 .b8 total[4];
ld.param.u64 %rd1, [k_in]; ld.param.u64 %rd2, [k_out]; ld.param.u32 %r9, [k_n];
mov.u32 %r1, %tid.x; mov.u32 %r2, %ntid.x; mov.u32 %r3, %ctaid.x;
setp.ge.u32 %p1, %r1, %r9;
@%p1 exit;
mad.lo.s32 %r4, %r3, %r2, %r1;
mad.wide.u32 %rd3, %r4, 4, %rd1;
ld.global.u32 %r5, [%rd3];
mov.u32 %r6, dynamic; shl.b32 %r7, %r1, 2; add.s32 %r6, %r6, %r7;
st.shared.u32 [%r6], %r5;
setp.ne.u32 %p2, %r1, 0; @%p2 bra THERE; st.shared.u32 [total], 0;
THERE: bar.sync 0;
sub.u32 %r8, %r9, %r1; sub.u32 %r8, %r8, 1; shl.b32 %r8, %r8, 2; mov.u32 %r6, dynamic; add.s32 %r6, %r6, %r8;
ld.shared.u32 %r5, [%r6];
atom.shared.add.u32 %r10, [total], %r5;
setp.gt.u32 %p3, %r5, 50; bar.red.popc.u32 %r11, 0, %p3;
ld.shared.u32 %r12, [total];
mad.wide.u32 %rd4, %r4, 8, %rd2;
st.global.v2.u32 [%rd4], {{%r12, %r11}};
ret;
}}
"""


def test_a_block_shares_memory_and_waits_for_all_that_have_not_ended(ptx_folder: Path) -> None:
    kernel = kernel_of(SUM, ptx_folder)
    values = np.random.default_rng(1).integers(0, 100, 3 * 96).astype(U4)
    found = np.zeros((3, 96, 2), U4)
    assert kernel(values, found, 80, grid=(3,), block=(96,), shared=96 * 4) == []
    for block in range(3):
        part = values[96 * block : 96 * block + 80]
        assert set(map(tuple, found[block, :80])) == {(part.sum(), (part > 50).sum())}
        assert not found[block, 80:].any()


MATRICES = {
    "m16n8k16.row.col.f32.f16.f16.f32": (16, 16, F2, F4),
    "m16n8k8.row.col.f32.f16.f16.f32": (16, 8, F2, F4),
    "m16n8k8.row.col.f32.tf32.tf32.f32": (16, 8, F4, F4),
    "m16n8k32.row.col.s32.s8.s8.s32": (16, 32, I1, I4),
    "m16n8k16.row.col.s32.s8.s8.s32": (16, 16, I1, I4),
    "m8n8k16.row.col.s32.s8.s8.s32": (8, 16, I1, I4),
    "m16n8k16.row.col.f16.f16.f16.f16": (16, 16, F2, F2),
}


def fragments(matrix: np.ndarray, kind: np.dtype, per: int) -> np.ndarray:
    """Return the words of all lanes. Lane 4 g + t has rows g and g + 8, of every 4 * `per` elements of a row
    the `per` at place t (PTX's manual)."""
    parts = matrix.astype(kind).reshape(-1, 8, matrix.shape[1] // (4 * per), 4, per)
    return np.ascontiguousarray(parts.transpose(1, 3, 2, 0, 4)).reshape(32, -1).view(U4)


def product_of(shape: str, name: str) -> str:
    """Return a kernel whose warp multiplies matrices of a shape. Its parameters are the lanes' words."""
    m, k, kind, result = MATRICES[shape]
    per = 4 // kind.itemsize
    n = {"a": m * k // 32 // per, "b": k * 8 // 32 // per, "c": m * 8 // 32 * result.itemsize // 4}
    loads = "".join(
        f"ld.param.u64 %rd1, [{name}_{x}]; mad.wide.u32 %rd2, %r1, {4 * n[x]}, %rd1; "
        + "".join(f"ld.global.u32 %{x}{i}, [%rd2+{4 * i}]; " for i in range(n[x]))
        for x in "abc"
    )
    fragment = {x: "{" + ", ".join(f"%{x}{i}" for i in range(n[x])) + "}" for x in "abc"}
    store = "".join(f"st.global.u32 [%rd2+{4 * i}], %c{i}; " for i in range(n["c"]))
    params = ", ".join(f".param .u64 {name}_{x}" for x in "abc")
    return f"""{HEAD}.visible .entry {name}({params}) {{
    .reg .b32 %r<4>; .reg .b32 %a<4>; .reg .b32 %b<4>; .reg .b32 %c<4>; .reg .b64 %rd<4>;
    mov.u32 %r1, %laneid; {loads}
    mma.sync.aligned.{shape} {fragment["c"]}, {fragment["a"]}, {fragment["b"]}, {fragment["c"]};
    {store} ret; }}"""


@pytest.fixture(scope="module")
def products(precompiled: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Kernel]:
    texts = {f"k{i}": product_of(shape, f"k{i}") for i, shape in enumerate(MATRICES)}
    made = kernels(texts, folder_of(precompiled, tmp_path_factory))
    return dict(zip(MATRICES, made.values(), strict=True))


@pytest.mark.parametrize("shape", MATRICES)
def test_matrices_of_a_warp_are_multiplied(shape: str, products: dict[str, Kernel]) -> None:
    m, k, kind, result = MATRICES[shape]
    rng, kernel = np.random.default_rng(2), products[shape]
    # Every type holds these values exactly.
    a, b, c = (rng.integers(-8, 8, size) for size in ((m, k), (k, 8), (m, 8)))
    per = 4 // kind.itemsize
    words = {"a": fragments(a, kind, per), "b": fragments(b.T, kind, per), "c": fragments(c, result, 2)}
    assert kernel.unknown == []
    assert kernel(*words.values()) == []
    np.testing.assert_array_equal(words["c"], fragments(a @ b + c, result, 2))


@pytest.mark.parametrize("transposed", [False, True])
def test_matrices_are_loaded_from_shared_memory(transposed: bool, ptx_folder: Path) -> None:
    trans = ".trans" if transposed else ""
    text = f"""{HEAD}.visible .entry k(.param .u64 k_in, .param .u64 k_out) {{
    .reg .b32 %r<16>; .reg .b64 %rd<8>; .shared .align 16 .b8 tile[512];
    ld.param.u64 %rd1, [k_in]; ld.param.u64 %rd2, [k_out]; mov.u32 %r1, %laneid; shl.b32 %r2, %r1, 4;
    cvt.u64.u32 %rd3, %r2; add.s64 %rd1, %rd1, %rd3;
    ld.global.v4.u32 {{%r4, %r5, %r6, %r7}}, [%rd1];
    mov.u32 %r3, tile; add.s32 %r3, %r3, %r2; st.shared.v4.u32 [%r3], {{%r4, %r5, %r6, %r7}};
    bar.warp.sync -1;
    ldmatrix.sync.aligned.m8n8.x4{trans}.shared.b16 {{%r8, %r9, %r10, %r11}}, [%r3];
    movmatrix.sync.aligned.m8n8.trans.b16 %r11, %r11;
    add.s64 %rd2, %rd2, %rd3; st.global.v4.u32 [%rd2], {{%r8, %r9, %r10, %r11}}; ret; }}"""
    kernel = kernel_of(text, ptx_folder)
    tiles = np.arange(4 * 64, dtype=U2).reshape(4, 8, 8)
    found = np.zeros((32, 4), U4)
    assert kernel(tiles, found) == []
    for i in range(4):
        wanted = tiles[i].T if transposed != (i == 3) else tiles[i]  # the last tile was moved as well
        np.testing.assert_array_equal(found[:, i].copy().view(U2), wanted.reshape(-1))


def test_a_function_is_called(ptx_folder: Path) -> None:
    text = f"""{HEAD}.func (.param .b32 result) twice(.param .b32 value) {{ .reg .b32 %r<4>;
    ld.param.u32 %r1, [value]; add.u32 %r2, %r1, %r1; st.param.b32 [result], %r2; ret; }}
    """ + warp_kernel(
        "k",
        "{ .param .b32 p0; st.param.b32 [p0], %a; .param .b32 r0; "
        "call.uni (r0), twice, (p0); ld.param.b32 %d, [r0]; }",
    ).removeprefix(HEAD)
    values, found = np.arange(32, dtype=U4), np.zeros(32, U4)
    assert kernel_of(text, ptx_folder)(values, found) == []
    np.testing.assert_array_equal(found, 2 * values)


@pytest.mark.parametrize(
    ("code", "complaint"),
    [
        (
            "setp.lt.u32 %p1, %r1, 8; @%p1 bra LOW; shfl.sync.bfly.b32 %d, %a, 1, 31, -1; bra END; "
            "LOW: bar.sync 0; END:",
            "wait for each other for ever",
        ),
        ("shfl.sync.idx.b32 %d, %a, 9, 31, 0xFFFFFDFF;", "whose mask it is not in"),
        (
            "setp.eq.u32 %p1, %r1, 9; @%p1 ret; shfl.sync.idx.b32 %d, %a, 9, 31, 0xFFFFFDFF;",
            "that is not there",
        ),
        ("trap;", "a trap"),
        ("frobnicate.b32 %d, %a;", "not translated: frobnicate"),
    ],
)  # fmt: skip
def test_what_has_no_meaning_is_said(code: str, complaint: str, ptx_folder: Path) -> None:
    kernel = kernel_of(warp_kernel("k", code), ptx_folder)
    said = kernel(np.zeros(32, U4), np.zeros(32, U4))
    assert len(said) == 1
    assert complaint in said[0]
    assert "block 0, 0, 0" in said[0]

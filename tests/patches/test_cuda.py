"""The CUDA kernels that sort rows by expert, and add_id, under masks: run on the CPU by warp.h, as published
and as patched. (What runs on no CPU is compiled by compile_cuda.py, and proven by bench/gpu_suite where there
is a GPU.)"""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from cffi import FFI

from tests.patches import source
from tests.patches.masks import MASKS, masked
from tests.patches.operators import POISON, Ids, Shape

HERE = Path(__file__).parent
CUDA = "ggml/src/ggml-cuda/"
ffi = FFI()
ffi.cdef("""
void ids_helper(int32_t * ids, int32_t * ids_src1, int32_t * ids_dst, int32_t * bounds, int n_experts,
                int n_tokens, int n_used, int nchannels_y, int si1, int sis1, bool write_inverse);
void add_id(float * a, float * b, int32_t * ids, float * out, int n, int n_used, int n_tokens, int n_experts,
            int si1);
void zero_masked_rows_of(int32_t * ids, float * out, int n, int n_used, int n_tokens, int si1);
""")  # fmt: skip


def compile_kernels(folder: Path, texts: dict[str, str], *options: str) -> Any:
    """The kernels of these source texts as a library; launches become calls of warp::launch."""
    for name, text in texts.items():
        text = re.sub(
            r"([\w:]+(?:<\w+>)?)<<<(.+?)>>>\s*\(", r"warp::launch(\2, [&](auto... a) { \1(a...); })(", text
        )
        (folder / Path(name).name).write_text(text)
    (folder / "common.cuh").write_text('#include "warp.h"\n')
    library = folder / "kernels.so"
    done = subprocess.run(
        ["g++", "-std=c++17", "-O1", "-shared", "-fPIC", "-fno-gnu-unique", "-w", *options,
         "-I", folder, "-I", HERE, HERE / "warp.cpp", "-o", library],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return ffi.dlopen(str(library))


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    if source.sdist() is None:
        pytest.skip("llama.cpp's sdist is not in the cache: no build has fetched it here")
    if shutil.which("g++") is None:
        pytest.skip("no g++ here")
    names = [CUDA + name for name in ("mmid.cu", "mmid.cuh", "add-id.cu", "add-id.cuh")]
    published = source.published("ggml/include/ggml.h", *names, *source.patched_names())
    wanted = {*names, "ggml/include/ggml.h"}
    result = {}
    for which, texts, options in (
        ("published", published, []),
        ("patched", source.patched(published), ["-DPATCHED"]),
    ):
        folder = tmp_path_factory.mktemp(which)
        result[which] = compile_kernels(folder, {n: t for n, t in texts.items() if n in wanted}, *options)
    return result


def pointer(array: npt.NDArray[Any], kind: str) -> Any:
    return ffi.from_buffer(f"{kind}[]", array, require_writable=True)


@dataclass
class Sorted:
    """What the helper writes: for every row sorted by expert its place in src1 and dst, and where experts
    begin; `src1` holds the row of every (token, place) instead when it is the inverse map."""

    src1: Ids
    dst: Ids
    bounds: Ids


def table(shape: Shape, ids: Ids) -> Ids:
    """ids as the kernel sees them: rows of a wider table."""
    wide = np.full((shape.n_tokens, shape.n_used + 2), POISON, np.int32)
    wide[:, : shape.n_used] = ids
    return wide


def sort_rows(kernels: Any, shape: Shape, ids: Ids, n_rows: int, inverse: bool) -> Sorted:
    wide, n = table(shape, ids), ids.size
    out = Sorted(*(np.full(k, POISON, np.int32) for k in (n, n, shape.n_expert + 1)))
    kernels.ids_helper(
        pointer(wide, "int32_t"), pointer(out.src1, "int32_t"), pointer(out.dst, "int32_t"),
        pointer(out.bounds, "int32_t"), shape.n_expert, shape.n_tokens, shape.n_used, n_rows, wide.shape[1],
        n_rows, inverse,
    )  # fmt: skip
    return out


def check_sorted(shape: Shape, ids: Ids, n_rows: int, inverse: bool, found: Sorted) -> None:
    flat = ids.ravel()
    order = np.argsort(flat, kind="stable")[
        int((flat < 0).sum()) :
    ]  # the kept rows, by expert, then by token
    n_kept = len(order)
    np.testing.assert_array_equal(found.bounds, np.searchsorted(flat[order], np.arange(shape.n_expert + 1)))
    np.testing.assert_array_equal(found.dst[:n_kept], order)
    if inverse:
        expected = np.full(flat.size, flat.size - 1)
        expected[order] = np.arange(n_kept)
        # Masked rows are quantized too, to the last place: it is nobody's when any row is masked.
        np.testing.assert_array_equal(found.src1, expected)
        return
    token, place = np.divmod(order, shape.n_used)
    np.testing.assert_array_equal(found.src1[:n_kept], token * n_rows + place % n_rows)
    assert ((found.src1[n_kept:] >= 0) & (found.src1[n_kept:] < shape.n_tokens * n_rows)).all()


# The helper has a kernel of its own for 2, 4, 6, 8, 10, 16 and 32 experts per token; 3 and 40 take the
# general one.
@pytest.mark.parametrize("n_used", [2, 3, 4, 6, 8, 10, 16, 32, 40])
def test_rows_sorted_by_expert(kernels: dict[str, Any], n_used: int) -> None:
    for n_tokens in (1, 9, 64):
        shape = Shape("f32", n_tokens, n_used=n_used, n_expert=max(8, n_used + 5))
        for mask in MASKS:
            ids = masked(shape, mask)
            for n_rows, inverse in ((n_used, False), (1, False), (1, True)):
                found = sort_rows(kernels["patched"], shape, ids, n_rows, inverse)
                check_sorted(shape, ids, n_rows, inverse, found)
                if mask == "none":
                    before = sort_rows(kernels["published"], shape, ids, n_rows, inverse)
                    assert all((getattr(before, f) == getattr(found, f)).all() for f in vars(found))


def test_the_published_helper_leaves_holes(kernels: dict[str, Any]) -> None:
    """Why it is patched: masked rows come first, and their places in src1 are never written."""
    shape = Shape("f32", 9)
    found = sort_rows(kernels["published"], shape, masked(shape, "half"), shape.n_used, False)
    assert found.bounds[0] > 0
    assert (found.src1 == POISON).any()


@pytest.mark.parametrize("n_tokens", [1, 9, 64])
def test_add_id_and_zeroed_rows(kernels: dict[str, Any], n_tokens: int) -> None:
    shape = Shape("f32", n_tokens, n_out=200)
    rng = shape.rng
    rows = rng.standard_normal((n_tokens, shape.n_used, shape.n_out), np.float32)
    bias = rng.standard_normal((shape.n_expert, shape.n_out), np.float32)
    for mask in MASKS:
        ids = masked(shape, mask)
        wide = table(shape, ids)
        out = np.full_like(rows, np.nan)
        kernels["patched"].add_id(
            pointer(rows, "float"), pointer(bias, "float"), pointer(wide, "int32_t"), pointer(out, "float"),
            shape.n_out, shape.n_used, n_tokens, shape.n_expert, wide.shape[1],
        )  # fmt: skip
        np.testing.assert_array_equal(out, np.where(ids[..., None] < 0, 0, rows + bias[np.maximum(ids, 0)]))
        zeroed = rows.copy()
        kernels["patched"].zero_masked_rows_of(
            pointer(wide, "int32_t"),
            pointer(zeroed, "float"),
            shape.n_out,
            shape.n_used,
            n_tokens,
            wide.shape[1],
        )
        np.testing.assert_array_equal(zeroed, np.where(ids[..., None] < 0, 0, rows))

"""The CUDA kernels that sort rows by expert, and add_id, work under masks. warp.h runs them on the CPU, as
published and as patched. compile_cuda.py compiles the kernels that cannot run on a CPU, and bench/gpu_suite
tests them where there is a GPU."""

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
from hypothesis import given, settings
from hypothesis import strategies as st

from tools.patches import source
from tools.patches.operators import MASKS, POISON, Ids, Shape, masked

pytestmark = pytest.mark.nightly

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
    """Return the kernels of these source texts as a library. Launches become calls of warp::launch."""
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
def kernels(tmp_path_factory):
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
    """The helper's output.

    For rows sorted by expert, `src1` and `dst` hold each row's place in these tensors. In the inverse map,
    `src1` holds the row of every (token, place) instead. `bounds` holds the first rows of a grid's places,
    followed by the places' experts.
    """

    src1: Ids
    dst: Ids
    bounds: Ids

    def walked(self) -> tuple[Ids, Ids, Ids]:
        """Return mmq's work: expert, first row and end of every place that has rows."""
        n = len(self.bounds) // 2
        begin, end, experts = self.bounds[:n], self.bounds[1 : n + 1], self.bounds[n + 1 :]
        assert self.bounds[0] == 0
        assert (end >= begin).all()
        return experts[end > begin], begin[end > begin], end[end > begin]


def table(shape: Shape, ids: Ids) -> Ids:
    """Return ids as the kernel sees them: rows of a wider table."""
    wide = np.full((shape.n_tokens, shape.n_used + 2), POISON, np.int32)
    wide[:, : shape.n_used] = ids
    return wide


def sort_rows(
    kernels: Any, shape: Shape, ids: Ids, n_rows: int, inverse: bool, by_id: bool = False
) -> Sorted:
    """Sort rows with a place for every expert, or for every id."""
    wide, n = table(shape, ids), ids.size
    n_places = n if by_id else shape.n_expert
    out = Sorted(*(np.full(k, POISON, np.int32) for k in (n, n, 2 * n_places + 1)))
    kernels.ids_helper(
        pointer(wide, "int32_t"), pointer(out.src1, "int32_t"), pointer(out.dst, "int32_t"),
        pointer(out.bounds, "int32_t"), 0 if by_id else shape.n_expert, shape.n_tokens, shape.n_used,
        n_rows, wide.shape[1], n_rows, inverse,
    )  # fmt: skip
    return out


def check_sorted(shape: Shape, ids: Ids, n_rows: int, inverse: bool, found: Sorted) -> None:
    flat = ids.ravel()
    # These are the kept rows, by expert, then by token.
    order = np.argsort(flat, kind="stable")[int((flat < 0).sum()) :]
    n_kept = len(order)
    experts, counts = np.unique(flat[order], return_counts=True)
    np.testing.assert_array_equal(found.walked(), (experts, np.cumsum(counts) - counts, np.cumsum(counts)))
    np.testing.assert_array_equal(found.dst[:n_kept], order)
    if inverse:
        expected = np.full(flat.size, flat.size - 1)
        expected[order] = np.arange(n_kept)
        # Masked rows are quantized too, into the last place. This place is unused when any row is masked.
        np.testing.assert_array_equal(found.src1, expected)
        return
    token, place = np.divmod(order, shape.n_used)
    np.testing.assert_array_equal(found.src1[:n_kept], token * n_rows + place % n_rows)
    assert ((found.src1[n_kept:] >= 0) & (found.src1[n_kept:] < shape.n_tokens * n_rows)).all()


# The helper has separate kernels for 2, 4, 6, 8, 10, 16 and 32 experts per token. 3 and 40 use a general one.
@pytest.mark.parametrize("n_used", [2, 3, 4, 6, 8, 10, 16, 32, 40])
def test_rows_sorted_by_expert(kernels, n_used):
    for n_tokens in (1, 9, 64):
        shape = Shape("f32", n_tokens, n_used=n_used, n_expert=max(8, n_used + 5))
        for mask in MASKS:
            ids = masked(shape, mask)
            for n_rows, inverse in ((n_used, False), (1, False), (1, True)):
                found = sort_rows(kernels["patched"], shape, ids, n_rows, inverse)
                check_sorted(shape, ids, n_rows, inverse, found)
                bounds, experts = np.split(found.bounds, [shape.n_expert + 1])
                kept = np.sort(ids[ids >= 0])
                np.testing.assert_array_equal(bounds, np.searchsorted(kept, np.arange(len(bounds))))
                np.testing.assert_array_equal(experts, np.arange(shape.n_expert))  # mmf reads no list
                if mask == "none":
                    before = sort_rows(kernels["published"], shape, ids, n_rows, inverse)
                    assert (before.src1 == found.src1).all()
                    assert (before.dst == found.dst).all()
                    assert (before.bounds[: len(bounds)] == bounds).all()
                if n_tokens < 64:  # a block for every id is slow here
                    by_id = sort_rows(kernels["patched"], shape, ids, n_rows, inverse, by_id=True)
                    check_sorted(shape, ids, n_rows, inverse, by_id)
                    assert (by_id.dst == found.dst)[: len(kept)].all()
                    assert (by_id.src1 == found.src1).all()


@settings(max_examples=30)
@given(
    n_used=st.sampled_from([1, 2, 3, 6, 8, 10, 40]), n_tokens=st.integers(1, 40),
    n_expert=st.integers(40, 6144), share=st.sampled_from([0.0, 0.1, 0.8, 1.0]),
    n_near=st.integers(40, 6144), seed=st.integers(0, 2**32 - 1),
)  # fmt: skip
def test_places_by_id(kernels, n_used, n_tokens, n_expert, share, n_near, seed):
    """A pool has many experts, and ids name some of them. `share` of the ids are masked, and the others name
    experts among the last `n_near`.

    There are no more places than ids. Each named expert has one of them, and other experts have none.
    """
    rng = np.random.default_rng(seed)
    shape = Shape("f32", n_tokens, n_used=n_used, n_expert=n_expert)
    near = np.arange(max(n_expert - n_near, 0), n_expert)
    ids = np.stack([rng.permutation(near)[:n_used] for _ in range(n_tokens)]).astype(np.int32)
    ids[rng.random(ids.shape) < share] = rng.choice(np.array([-1, -2, np.iinfo(np.int32).min], np.int32))
    for n_rows, inverse in ((n_used, False), (1, True)):
        found = sort_rows(kernels["patched"], shape, ids, n_rows, inverse, by_id=True)
        check_sorted(shape, ids, n_rows, inverse, found)
        assert len(found.bounds) == 2 * ids.size + 1


def test_bounds_of_an_expert_that_a_token_names_twice(kernels):
    """The published helper leaves such rows out too. Bounds stay valid."""
    shape = Shape("f32", 9, n_expert=300)
    ids = shape.ids()
    ids[2], ids[0, 1] = ids[0], ids[0, 0]
    before = sort_rows(kernels["published"], shape, ids, shape.n_used, False)
    found = sort_rows(kernels["patched"], shape, ids, shape.n_used, False, by_id=True)
    experts, begin, end = found.walked()
    np.testing.assert_array_equal(experts, np.unique(ids))
    np.testing.assert_array_equal(begin, before.bounds[experts])
    np.testing.assert_array_equal(end, before.bounds[experts + 1])


def test_the_published_helper_leaves_holes(kernels):
    """The published helper puts masked rows first and leaves their places in src1 unwritten, unlike ours."""
    shape = Shape("f32", 9)
    found = sort_rows(kernels["published"], shape, masked(shape, "half"), shape.n_used, False)
    assert found.bounds[0] > 0
    assert (found.src1 == POISON).any()


@pytest.mark.parametrize("n_tokens", [1, 9, 64])
def test_add_id_and_zeroed_rows(kernels, n_tokens):
    shape = Shape("f32", n_tokens, n_out=200)
    rng = shape.rng
    rows = rng.standard_normal((n_tokens, shape.n_used, shape.n_out), np.float32)
    bias = rng.standard_normal((shape.n_expert, shape.n_out), np.float32)
    sizes = shape.n_out, shape.n_used, n_tokens
    for mask in MASKS:
        ids = masked(shape, mask)
        wide, out, zeroed = table(shape, ids), np.full_like(rows, np.nan), rows.copy()
        where = pointer(wide, "int32_t")
        kernels["patched"].add_id(
            pointer(rows, "float"), pointer(bias, "float"), where, pointer(out, "float"), *sizes,
            shape.n_expert, wide.shape[1],
        )  # fmt: skip
        np.testing.assert_array_equal(out, np.where(ids[..., None] < 0, 0, rows + bias[np.maximum(ids, 0)]))
        kernels["patched"].zero_masked_rows_of(where, pointer(zeroed, "float"), *sizes, wide.shape[1])
        np.testing.assert_array_equal(zeroed, np.where(ids[..., None] < 0, 0, rows))

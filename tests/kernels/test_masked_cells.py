"""Attention with masked cells (csrc/kernels/masked_cells.cpp) has the bits of ggml's own loops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cffi import FFI
from hypothesis import given, settings
from hypothesis import strategies as st

from spac import _core, _library
from spac.machine.arrays import Float32Array
from tests.kernels.conftest import answers_of
from tools.patches.ggml import Ggml

_ffi = FFI()
_ffi.cdef(
    "extern int64_t (*ggml_cpu_attended)"
    "(const void * mask, size_t stride, int64_t n_rows, int64_t begin, int64_t end);"
)
N_DIMS, N_HEADS = 32, 2


@pytest.fixture(scope="module")
def library():
    return _ffi.dlopen(str(_library.library_path()))


def random_mask(rng: np.random.Generator, n_tokens: int, n_cells: int, share: float) -> Any:
    """Return a mask, float16 [n_tokens, n_cells]. A token attends to this share of cells, at least one."""
    mask = np.where(rng.random((n_tokens, n_cells)) < share, 0.0, -np.inf).astype(np.float16)
    mask[np.arange(n_tokens), rng.integers(n_cells, size=n_tokens)] = 0
    return mask


def attention(ggml: Ggml, kind: str, mask: Any, n_threads: int, rng: np.random.Generator) -> Float32Array:
    """Return attention with random queries, and with random cells of this type."""
    n_tokens, n_cells = mask.shape
    context = ggml.context(8)
    q = ggml.c.ggml_new_tensor_3d(context, ggml.F32, N_DIMS, n_tokens, N_HEADS)
    k, v = (ggml.c.ggml_new_tensor_3d(context, ggml.types[kind], N_DIMS, n_cells, N_HEADS) for _ in range(2))
    cells = ggml.c.ggml_new_tensor_2d(context, ggml.types["f16"], n_cells, n_tokens)
    out = ggml.c.ggml_flash_attn_ext(context, q, k, v, cells, N_DIMS**-0.5, 0.0, 0.0)
    graph = ggml.graph(context, [out])
    numbers = np.float16 if kind == "f16" else np.float32
    with ggml.backend(ggml.device("CPU"), n_threads) as backend, ggml.memory(context, backend):
        ggml.write(q, rng.standard_normal((N_HEADS, n_tokens, N_DIMS), np.float32))
        for each in (k, v):
            ggml.write(each, rng.standard_normal((N_HEADS, n_cells, N_DIMS), np.float32).astype(numbers))
        ggml.write(cells, mask)
        ggml.compute(backend, graph)
        return ggml.read(out, (n_tokens, N_HEADS, N_DIMS))


@pytest.mark.parametrize("kind", ["f16", "f32"])
@given(
    n_tokens=st.sampled_from([1, 2, 7, 63, 64, 130]),
    n_cells=st.sampled_from([1, 15, 64, 256, 600]),
    share=st.sampled_from([0.0, 0.02, 0.3, 1.0]),
    seed=st.integers(0, 99),
)
@settings(max_examples=40)
def test_equal_bits(ggml, kind, n_tokens, n_cells, share, seed):
    mask = random_mask(np.random.default_rng(seed), n_tokens, n_cells, share)
    made = []
    for on in (True, False):
        try:
            _core.set_cpu_kernels(on)
            made.append(attention(ggml, kind, mask, 1 + seed % 2, np.random.default_rng(seed)))
        finally:
            _core.set_cpu_kernels(True)
    assert np.isfinite(made[0]).all()
    assert np.array_equal(made[0].view(np.uint32), made[1].view(np.uint32))


@given(
    n_rows=st.integers(1, 3),
    begin=st.integers(0, 70),
    n=st.integers(0, 70),
    share=st.sampled_from([0.0, 0.01, 0.2]),
    seed=st.integers(0, 99),
)
def test_the_first_cell_that_a_row_attends_to(library, n_rows, begin, n, share, seed):
    rng = np.random.default_rng(seed)
    mask = np.where(rng.random((n_rows, begin + n + 5)) < share, 0.0, -np.inf).astype(np.float16)
    rows, end = _ffi.from_buffer(mask), begin + n
    attended = np.flatnonzero(np.isfinite(mask[:, begin:end]).any(axis=0))
    expected = begin + attended[0] if len(attended) else end
    assert library.ggml_cpu_attended(rows, mask.strides[0], n_rows, begin, end) == expected


@pytest.mark.parametrize("n_tokens", [3, 64])
def test_attention_asks(ggml, n_tokens):
    mask = np.full((n_tokens, 256), -np.inf, np.float16)
    mask[:, 70:80] = 0
    signature = "int64_t(const void *, size_t, int64_t, int64_t, int64_t)"
    with answers_of(_ffi, "ggml_cpu_attended", signature) as answers:
        attention(ggml, "f16", mask, 1, np.random.default_rng(0))
    assert set(answers) == ({70, 256} if n_tokens < 64 else {64, 70, 192, 256})

"""A row times one value (csrc/kernels/scale_rows.cpp) equals the product of single floats, bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cffi import FFI
from hypothesis import given, settings
from hypothesis import strategies as st

from spac import _core
from tests.kernels.conftest import answers_of
from tools.patches.ggml import Ggml

_ffi = FFI()
_ffi.cdef("extern bool (*ggml_cpu_mul)(int ith, int nth, const void * dst);")
SIZES = st.integers(1, 9)


@pytest.fixture
def answers():
    """Yield the answers of ggml_cpu_mul, which every thread of the operator asks."""
    with answers_of(_ffi, "ggml_cpu_mul", "bool(int, int, const void *)") as given:
        yield given


def product(ggml: Ggml, x: Any, y: Any, n_threads: int, inplace: bool) -> Any:
    """Return x * y as the CPU backend computes it. Both are [n2, n1, n0]."""
    device = ggml.device("CPU")
    context = ggml.context(4)
    a, b = (ggml.c.ggml_new_tensor_3d(context, ggml.F32, *reversed(it.shape)) for it in (x, y))
    out = (ggml.c.ggml_mul_inplace if inplace else ggml.c.ggml_mul)(context, a, b)
    graph = ggml.graph(context, [out])
    with ggml.backend(device, n_threads) as backend, ggml.memory(context, backend):
        ggml.write(a, x)
        ggml.write(b, y)
        ggml.compute(backend, graph)
        return ggml.read(out, x.shape)


@given(
    n=st.integers(2, 70), used=SIZES, tokens=SIZES, repeat=st.booleans(), inplace=st.booleans(), seed=SIZES
)
@settings(max_examples=60)
def test_any_shape(ggml, n, used, tokens, repeat, inplace, seed):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((tokens, used, n), np.float32)
    y = rng.standard_normal((1 if repeat else tokens, used, 1), np.float32)
    assert np.array_equal(product(ggml, x, y, 1 + seed % 3, inplace).view(np.uint32), (x * y).view(np.uint32))


def test_the_operator_asks(ggml, answers):
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    for y, computed in ((x[..., :1], True), (x, False), (x[:1, :1], False)):
        answers.clear()
        assert np.array_equal(product(ggml, x, y, 2, False), x * y)
        assert answers == [computed] * 2
    answers.clear()
    try:
        _core.set_cpu_kernels(False)
        product(ggml, x, x[..., :1], 1, False)
    finally:
        _core.set_cpu_kernels(True)
    assert answers == [False]

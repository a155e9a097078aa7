"""A layer's experts as one operator (csrc/kernels/experts.cpp) equal ggml's operators, bit for bit."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest
from cffi import FFI
from hypothesis import given, settings
from hypothesis import strategies as st

from spac import _core
from spac.machine.arrays import Float32Array, Int32Array
from tests.kernels.conftest import answers_of
from tools.patches.ggml import Ggml

_ffi = FFI()
_ffi.cdef(
    "extern int (*ggml_cpu_experts)(const void * graph, int node_n, const void * params, void * counters);"
)
WIDTH, N_EXPERT = 256, 7
# Types by what they are multiplied with: q8_K for the first two, q8_0 for the others.
KINDS = [kind for kind in ("q4_K", "q6_K", "q8_0", "mxfp4") if kind in _core.trusted_cpu_kernels()]
SKIP = pytest.mark.skipif(not KINDS, reason="this build has no kernels for these types")


@dataclass(frozen=True)
class Layer:
    """The form of a layer's experts."""

    gate: str = "q4_K"  # the type of gate and up
    down: str = "q4_K"
    n_ff: int = 256
    n_used: int = 3
    n_tokens: int = 1
    activation: str = "swiglu"
    merged: bool = False  # gate and up are halves of one matrix
    views: bool = False  # of merged halves, instead of an activation of the whole
    biased: bool = False
    summed: bool = False  # the weighted sum over a token's experts follows
    read: str = ""  # a node that others read too


@pytest.fixture(scope="module")
def answers():
    """Yield the answers of ggml_cpu_experts, which every thread asks at every product of experts."""
    signature = "int(const void *, int, const void *, void *)"
    with answers_of(_ffi, "ggml_cpu_experts", signature) as given:
        yield given


@cache
def random_weights(ggml: Ggml, number: int, n_row: int, n_in: int, seed: int) -> bytes:
    """Return quantized rows. They are kept, because it takes long to quantize them."""
    rows = np.random.default_rng(seed).standard_normal((n_row, n_in), np.float32)
    return ggml.quantize(number, rows)


class Graph:
    """The operators of a layer, with random weights and input. `ids` are [n_tokens, n_used]."""

    def __init__(self, ggml: Ggml, layer: Layer, seed: int) -> None:
        self.ggml, self.layer, self.rng = ggml, layer, np.random.default_rng(seed)
        self.context = ggml.context(60)
        self.data: list[tuple[Any, Any]] = []
        c, n_ff, n_used, n_tokens = ggml.c, layer.n_ff, layer.n_used, layer.n_tokens
        self.ids = c.ggml_new_tensor_2d(self.context, ggml.I32, n_used, n_tokens)
        x = self._numbers(WIDTH, 1, n_tokens)
        if layer.merged:
            both = self._product(layer.gate, WIDTH, 2 * n_ff, x)
            halves = [
                c.ggml_view_3d(
                    self.context, both, n_ff, n_used, n_tokens, 8 * n_ff, 8 * n_ff * n_used, 4 * first
                )
                for first in (0, n_ff)
            ]
            active = self._activation(*halves) if layer.views else c.ggml_swiglu(self.context, both)
        else:
            up = self._product(layer.gate, WIDTH, n_ff, x)
            active = self._activation(self._product(layer.gate, WIDTH, n_ff, x), up)
        out = rows = self._product(layer.down, n_ff, WIDTH, active)
        readers = [active] if layer.read == "activation" else []
        if layer.summed:
            weighted = c.ggml_mul(self.context, rows, self._numbers(1, n_used, n_tokens))
            stride = 4 * WIDTH
            places = [
                c.ggml_view_2d(self.context, weighted, WIDTH, n_tokens, stride * n_used, stride * i)
                for i in range(n_used)
            ]
            out = places[0]
            for place in places[1:]:
                out = c.ggml_add(self.context, out, place)
            if layer.read == "weighted":
                c.ggml_set_output(weighted)
            readers += [places[0]] if layer.read == "place" else []
        self.outputs = [out, *(c.ggml_add(self.context, it, it) for it in readers)]
        self.graph = ggml.graph(self.context, self.outputs)

    def _numbers(self, *shape: int) -> Any:
        tensor = self.ggml.c.ggml_new_tensor_3d(self.context, self.ggml.F32, *shape)
        self.data.append((tensor, self.rng.standard_normal(shape[::-1], np.float32)))
        return tensor

    def _product(self, kind: str, n_in: int, n_out: int, x: Any) -> Any:
        number = self.ggml.types[kind]
        weights = self.ggml.c.ggml_new_tensor_3d(self.context, number, n_in, n_out, N_EXPERT)
        self.data.append((weights, random_weights(self.ggml, number, n_out * N_EXPERT, n_in, len(self.data))))
        product = self.ggml.c.ggml_mul_mat_id(self.context, weights, x, self.ids)
        if self.layer.biased:
            product = self.ggml.c.ggml_add_id(
                self.context, product, self._numbers(n_out, N_EXPERT, 1), self.ids
            )
        return product

    def _activation(self, gate: Any, up: Any) -> Any:
        c = self.ggml.c
        if self.layer.activation == "swiglu_oai":
            return c.ggml_swiglu_oai(self.context, gate, up, 1.702, 7.0)
        return getattr(c, f"ggml_{self.layer.activation}_split")(self.context, gate, up)

    def run(self, ids: Int32Array, n_threads: int, answers: list[int]) -> tuple[Float32Array, Float32Array]:
        """Return ggml's outputs and ours, and leave our answers."""
        device = self.ggml.device("CPU")
        with self.ggml.backend(device, n_threads) as backend, self.ggml.memory(self.context, backend):
            for tensor, data in [*self.data, (self.ids, ids)]:
                self.ggml.write(tensor, data)
            results = []
            try:
                for on in (False, True):
                    _core.set_cpu_kernels(on)
                    answers.clear()
                    self.ggml.compute(backend, self.graph)
                    outputs = [self.ggml.read(it, (self.ggml.c.ggml_nbytes(it) // 4,)) for it in self.outputs]
                    results.append(np.concatenate(outputs))
            finally:
                _core.set_cpu_kernels(True)
        return results[0], results[1]


def chosen(layer: Layer, seed: int, masked: float = 0.0) -> Int32Array:
    """Return distinct experts for each token. A share of them is masked."""
    rng = np.random.default_rng(seed)
    ids = np.array([rng.permutation(N_EXPERT)[: layer.n_used] for _ in range(layer.n_tokens)], np.int32)
    return np.where(rng.random(ids.shape) < masked, -1, ids).astype(np.int32)


def assert_equal(ours: Float32Array, theirs: Float32Array) -> None:
    assert np.array_equal(ours.view(np.uint32), theirs.view(np.uint32))


LAYERS = st.builds(
    Layer,
    gate=st.sampled_from(KINDS), down=st.sampled_from(KINDS), n_ff=st.sampled_from([256, 512]),
    n_used=st.integers(1, 6), n_tokens=st.integers(1, 9),
    activation=st.sampled_from(["swiglu", "geglu", "swiglu_oai"]), merged=st.booleans(), views=st.booleans(),
    biased=st.booleans(), summed=st.booleans(),
)  # fmt: skip


@SKIP
@given(
    layer=LAYERS,
    masked=st.sampled_from([0.0, 0.3, 1.0]),
    n_threads=st.integers(1, 3),
    seed=st.integers(0, 99),
)
@settings(max_examples=40)
def test_any_layer(ggml, answers, layer, masked, n_threads, seed):
    ids = chosen(layer, seed, masked)
    theirs, ours = Graph(ggml, layer, seed).run(ids, n_threads, answers)
    assert_equal(ours, theirs)
    most = np.bincount(ids[ids >= 0], minlength=1).max()
    if most < 8 or {layer.gate, layer.down} <= {"q8_0", "mxfp4"}:
        assert answers[0] > 0
        assert answers == [answers[0]] * n_threads, "the whole layer is one operator"


@SKIP
@pytest.mark.parametrize("read", ["", "activation", "weighted", "place"])
def test_what_others_read_is_computed(ggml, answers, read):
    """The sum is left to ggml where its parts are read elsewhere. The rows before it are always written."""
    layer = Layer(gate=KINDS[0], down=KINDS[0], summed=True, read=read)
    theirs, ours = Graph(ggml, layer, 1).run(chosen(layer, 1), 2, answers)
    assert_equal(ours, theirs)
    assert answers[0] == (3 if read in ("weighted", "place") else 3 + 1 + layer.n_used + layer.n_used - 1)


@SKIP
def test_many_pairs_and_tiled_experts_are_left_to_ggml(ggml, answers):
    for layer in (Layer(gate="q8_0", down="q8_0", n_used=6, n_tokens=43), Layer(n_tokens=30)):
        theirs, ours = Graph(ggml, layer, 2).run(chosen(layer, 2), 2, answers)
        assert_equal(ours, theirs)
        assert not any(answers)
